/* A closed-loop load client for one machine: HTTP/1.1, or publishing to NATS JetStream.
 *
 * N keep-alive connections to 127.0.0.1, each with exactly one request outstanding: the next leaves when
 * the answer to the last has arrived whole.  One thread, epoll.  Every latency (first byte written to last
 * byte read) is kept raw; percentiles are exact.  A run is bounded by --count requests or --seconds of time,
 * and by HARD_SECONDS whatever the flags say.  Prints one line of JSON.
 *
 *   load --port P[,P…] --path /a/x{}/b [--conns 1] [--seconds S | --count N] [--warm S]
 *        [--objects K] [--first F] [--body TEXT] [--nats]
 *
 * "{}" in the path is replaced by F, F+1, … F+K-1, over and over.  Every request is a POST.  With several
 * ports the connections are dealt out over them, and the i-th object is asked for at the i-th port, over and
 * over, so that objects which live there are called at home; a single object is asked for everywhere.
 * With --nats the path is a subject and the body a message: an answer is the stream's acknowledgement.
 * A status outside 2xx, an answer that cannot be read and a connection closed early are errors: they are
 * counted, the first one is shown, and they are no part of the rate or of the latencies.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ROOM 65536 /* one request or one answer */
#define HARD_SECONDS 120.0
#define GRACE_SECONDS 15.0 /* for the last answers, once no request is sent any more */
#define MAX_RECONNECTS 200
#define MAX_PORTS 16

struct connection {
    int fd;
    int busy;
    int server; /* which of the ports */
    double sent_at;
    size_t out_len, out_done, in_len;
    char out[ROOM], in[ROOM];
};

static struct {
    int port[MAX_PORTS], ports, conns, nats;
    double seconds, warm;
    long count, objects, first;
    const char *path, *body;
} opt = {.conns = 1, .objects = 1, .path = "/", .body = "[]"};

static struct connection *conns;
static int poller, reconnects;
static double started, measure_from, stop_at, first_sent, last_answered;
static long sent, sent_to[MAX_PORTS], answered, errors, kept, space;
static float *latency;
static char error_sample[240], last_body[120];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Copy text so that it can stand between quotes in JSON. */
static void quote(char *to, size_t room, const char *from, size_t len) {
    size_t i;
    for (i = 0; i < len && i + 1 < room; i++) {
        unsigned char c = from[i];
        to[i] = c < 32 || c > 126 ? ' ' : c == '"' || c == '\\' ? '\'' : c;
    }
    to[i] = 0;
}

static void failed(const char *why, size_t len) {
    if (!errors++) quote(error_sample, sizeof error_sample, why, len);
}

/* Say hello to NATS and name the subject that acknowledgements come to. */
static void greet(struct connection *c) {
    char hello[160];
    int len = snprintf(hello, sizeof hello, "CONNECT {\"verbose\":false,\"headers\":false}\r\nSUB _INBOX.load%ld 1\r\nPING\r\n",
                       (long)(c - conns));
    if (write(c->fd, hello, len) != len) die("greet");
    for (c->in_len = 0; !memmem(c->in, c->in_len, "PONG\r\n", 6);) {
        ssize_t n = read(c->fd, c->in + c->in_len, ROOM - 1 - c->in_len);
        if (n <= 0) die("no PONG");
        c->in_len += n;
    }
    c->in_len = 0;
}

static void attach(struct connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(opt.port[c->server]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event watch = {.events = EPOLLIN, .data.ptr = c};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &watch)) die("epoll_ctl");
    c->busy = 0;
    c->in_len = c->out_len = c->out_done = 0;
    if (opt.nats) greet(c);
}

static int may_send(double t) { return t < stop_at && (!opt.count || sent < opt.count); }

static void push(struct connection *c) { /* requests are small and sockets blocking: this does not wait in practice */
    while (c->out_done < c->out_len) {
        ssize_t n = write(c->fd, c->out + c->out_done, c->out_len - c->out_done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* the reader will see the close */
        c->out_done += n;
    }
}

/* The next object of the connection's server. */
static long next_object(struct connection *c) {
    long turn = sent_to[c->server]++;
    if (opt.objects < opt.ports) return opt.first + turn % opt.objects;
    return opt.first + c->server + opt.ports * (turn % ((opt.objects - 1 - c->server) / opt.ports + 1));
}

static void send_next(struct connection *c) {
    const char *hole = strstr(opt.path, "{}");
    char path[1024], number[32] = "";
    long object = next_object(c);
    int head = hole ? (int)(hole - opt.path) : (int)strlen(opt.path);
    if (hole) snprintf(number, sizeof number, "%ld", object);
    snprintf(path, sizeof path, "%.*s%s%s", head, opt.path, number, hole ? hole + 2 : "");
    if (opt.nats)
        c->out_len = snprintf(c->out, ROOM, "PUB %s _INBOX.load%ld %zu\r\n%s\r\n", path, (long)(c - conns), strlen(opt.body), opt.body);
    else
        c->out_len = snprintf(c->out, ROOM,
                              "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                              "Content-Length: %zu\r\n\r\n%s",
                              path, opt.port[c->server], strlen(opt.body), opt.body);
    if (c->out_len >= ROOM) die("request too long");
    c->out_done = 0;
    c->busy = 1;
    sent++;
    c->sent_at = now();
    push(c);
}

static void record(struct connection *c, double t) {
    answered++;
    if (c->sent_at < measure_from) return;
    if (!kept) first_sent = c->sent_at;
    last_answered = t;
    if (kept == space && !(latency = realloc(latency, (space = space ? 2 * space : 65536) * sizeof *latency))) die("memory");
    latency[kept++] = (float)((t - c->sent_at) * 1e6);
}

/* Where the body ends: its length if the answer is whole, -1 if more must be read, -2 if it makes no sense. */
static long whole(const char *in, size_t len, size_t *body_at) {
    const char *end = memmem(in, len, "\r\n\r\n", 4), *line;
    if (!end) return -1;
    *body_at = end + 4 - in;
    for (line = memmem(in, len, "\r\n", 2); line && line < end; line = memmem(line + 2, end + 2 - (line + 2), "\r\n", 2)) {
        if (!strncasecmp(line + 2, "content-length:", 15)) {
            long want = strtol(line + 17, NULL, 10);
            return want < 0 || want > ROOM ? -2 : len >= *body_at + want ? want : -1;
        }
        if (!strncasecmp(line + 2, "transfer-encoding:", 18)) { /* chunked, with no trailers: ends with "0\r\n\r\n" */
            const char *stop = len >= *body_at + 5 ? in + len - 5 : NULL;
            return stop && !memcmp(stop, "0\r\n\r\n", 5) ? (long)(len - *body_at) : -1;
        }
    }
    return !strncmp(in + 9, "204", 3) ? 0 : -2;
}

static void lost(struct connection *c, const char *why) {
    if (c->busy) failed(why, strlen(why));
    close(c->fd);
    if (++reconnects > MAX_RECONNECTS) {
        fprintf(stderr, "load: the server keeps closing connections\n");
        exit(2);
    }
    attach(c);
    if (may_send(now())) send_next(c);
}

/* What the server said: the length of the whole answer's body, or -1 and -2 as above. `good`: it is a success. */
static long http_answer(struct connection *c, size_t *body_at, int *good) {
    long body = whole(c->in, c->in_len, body_at);
    *good = body >= 0 && c->in[9] == '2';
    return body;
}

/* The same for NATS: "MSG subject 1 LENGTH", the acknowledgement in JSON, and lines that ask for nothing but a PONG. */
static long nats_answer(struct connection *c, size_t *body_at, int *good) {
    for (;;) {
        char *end = memmem(c->in, c->in_len, "\r\n", 2);
        size_t line = end ? end + 2 - c->in : 0;
        if (!end) return -1;
        if (!strncmp(c->in, "MSG ", 4)) {
            char *blank = memrchr(c->in, ' ', line);
            long body = blank ? strtol(blank, NULL, 10) : -1;
            *body_at = line;
            if (body < 0 || body > ROOM - 1024) return -2;
            if (c->in_len < line + body + 2) return -1;
            *good = memmem(c->in + line, body, "\"seq\":", 6) && !memmem(c->in + line, body, "\"error\":", 8);
            return body;
        }
        if (!strncmp(c->in, "-ERR", 4)) return -2;
        if (!strncmp(c->in, "PING", 4) && write(c->fd, "PONG\r\n", 6) != 6) return -2;
        memmove(c->in, c->in + line, c->in_len -= line);
    }
}

static void readable(struct connection *c) {
    ssize_t n = read(c->fd, c->in + c->in_len, ROOM - 1 - c->in_len);
    size_t body_at = 0;
    long body;
    int good = 0;
    double t = now();
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) return lost(c, "connection closed before the answer");
    c->in[c->in_len += n] = 0;
    body = opt.nats ? nats_answer(c, &body_at, &good) : http_answer(c, &body_at, &good);
    if (body == -2 || (body == -1 && c->in_len == ROOM - 1)) return lost(c, "answer not understood");
    if (body == -1) return;
    if (!c->busy) return lost(c, "answer without a question");
    if (good) {
        record(c, t);
        quote(last_body, sizeof last_body, c->in + body_at, body);
    } else {
        failed(c->in, c->in_len);
    }
    c->busy = 0;
    c->in_len = 0;
    if (may_send(t)) send_next(c);
}

static int any_busy(void) {
    for (int i = 0; i < opt.conns; i++)
        if (conns[i].busy) return 1;
    return 0;
}

static void drive(void) {
    struct epoll_event events[256];
    for (int i = 0; i < opt.conns; i++)
        if (may_send(now())) send_next(&conns[i]);
    for (double t = now(); may_send(t) || any_busy(); t = now()) {
        if (t > stop_at + GRACE_SECONDS) {
            failed("no answer in time", 17);
            return;
        }
        int n = epoll_wait(poller, events, 256, 50);
        for (int i = 0; i < n; i++) readable(events[i].data.ptr);
    }
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double at(double share) { return kept ? latency[(long)(share * (kept - 1) + 0.5)] : 0; }

static void report(void) {
    struct rusage used;
    double seconds = kept ? last_answered - first_sent : 0;
    getrusage(RUSAGE_SELF, &used);
    qsort(latency, kept, sizeof *latency, ascending);
    printf("{\"rate\": %.2f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"kept\": %ld, \"answered\": %ld, "
           "\"seconds\": %.4f, \"wall\": %.4f, \"client_cpu\": %.4f, \"errors\": %ld, \"error\": \"%s\", \"last\": \"%s\"}\n",
           seconds > 0 ? kept / seconds : 0, at(0.5), at(0.99), at(1), kept, answered, seconds, now() - started,
           used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6, errors,
           error_sample, last_body);
}

static void ports(char *list) {
    for (char *one = strtok(list, ","); one && opt.ports < MAX_PORTS; one = strtok(NULL, ",")) {
        int port = atoi(one);
        if (port < 1 || port > 65535) exit(2);
        opt.port[opt.ports++] = port;
    }
}

static void flags(int argc, char **argv) {
    static const struct option known[] = {{"port", 1, 0, 'p'}, {"path", 1, 0, 'u'},  {"conns", 1, 0, 'c'},
                                          {"seconds", 1, 0, 's'}, {"count", 1, 0, 'n'}, {"warm", 1, 0, 'w'},
                                          {"objects", 1, 0, 'k'}, {"first", 1, 0, 'f'}, {"body", 1, 0, 'b'},
                                          {"nats", 0, 0, 'N'},    {0}};
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (o == 'p') ports(optarg);
        else if (o == 'N') opt.nats = 1;
        else if (o == 'u') opt.path = optarg;
        else if (o == 'c') opt.conns = atoi(optarg);
        else if (o == 's') opt.seconds = atof(optarg);
        else if (o == 'n') opt.count = atol(optarg);
        else if (o == 'w') opt.warm = atof(optarg);
        else if (o == 'k') opt.objects = atol(optarg);
        else if (o == 'f') opt.first = atol(optarg);
        else if (o == 'b') opt.body = optarg;
        else exit(2);
    }
    if (opt.ports < 1 || opt.conns < 1 || opt.conns > 1024 || opt.objects < 1 ||
        (opt.seconds <= 0 && opt.count <= 0)) {
        fprintf(stderr, "load: --port, and --seconds or --count, are needed\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    flags(argc, argv);
    if (!(conns = calloc(opt.conns, sizeof *conns)) || (poller = epoll_create1(EPOLL_CLOEXEC)) < 0) die("start");
    for (int i = 0; i < opt.conns; i++) {
        conns[i].server = i % opt.ports;
        attach(&conns[i]);
    }
    started = now();
    measure_from = started + opt.warm;
    stop_at = opt.seconds > 0 ? measure_from + opt.seconds : started + HARD_SECONDS;
    if (stop_at > started + HARD_SECONDS) stop_at = started + HARD_SECONDS;
    drive();
    report();
    return 0;
}
