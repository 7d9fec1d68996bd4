# A Durable Object with its SQLite database on local disk. The address and the folder are given on the command line.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [ (name = "counters", worker = .counters), (name = "disk", disk = (writable = true)) ],
  sockets = [ (name = "http", address = "127.0.0.1:0", http = (), service = "counters") ],
);

const counters :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [ (name = "workerd.js", esModule = embed "workerd.js") ],
  # Idle objects would be put away after ten seconds, in the middle of counting what awake ones take.
  durableObjectNamespaces = [
    (className = "Counter", uniqueKey = "bench", enableSql = true, preventEviction = true),
  ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [ (name = "COUNTERS", durableObjectNamespace = "Counter") ],
);
