CREATE TABLE bids (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL, -- milliseconds since 1970
    user TEXT NOT NULL,
    amount INTEGER NOT NULL
);

CREATE INDEX bids_by_amount ON bids (amount);
