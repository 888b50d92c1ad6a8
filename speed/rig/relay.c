/*
 * A wire of chosen length, width and quality between two network namespaces.
 *
 *   relay CLIENT_NS CLIENT_DEV SERVER_NS SERVER_DEV DELAY_MS RATE_MBIT QUEUE_MS LOSS SEED
 *
 * Makes a TUN device in each namespace, says "ready" on stdout, and carries every packet from one to the other
 * until SIGTERM or SIGINT. Then it delivers what is under way, prints as one JSON object what became of all packets,
 * and its devices go with it.
 *
 * Each direction has its own thread and models a link with a drop-tail queue before it:
 *   loss   a packet is lost with probability LOSS (0.0001: 0.01 %), from a generator seeded with SEED;
 *   rate   RATE_MBIT of IP bytes (0: unlimited) by a token bucket of BURST_NS depth; a packet that would wait
 *          longer than QUEUE_MS is dropped, so QUEUE_MS equal to the round trip is a queue of bandwidth × delay;
 *   delay  a packet leaves DELAY_MS after its last bit went on the link, in order.
 * Packets are picked up every TICK_NS, so a delay is up to that much longer than asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST_PACKET = 1 << 16, SMALLEST_PACKET = 40, READ_AT_ONCE = 256 };
static const int64_t TICK_NS = 100000, BURST_NS = 250000, LONGEST_PAUSE_NS = 100000000;
static const int END_WITHIN_S = 3;
static const size_t UNLIMITED_QUEUE_BYTES = (size_t)512 << 20;

struct packet {
    int64_t due_ns;
    uint32_t size;
    unsigned char bytes[];
};

struct direction {
    int in, out;
    int64_t delay_ns, queue_ns, link_free_ns;
    double ns_per_byte, loss;
    uint64_t random;
    /* Packets under way, oldest first; none wraps around the end, `wrap` says where the last lap ended. */
    unsigned char *ring;
    size_t ring_size, head, tail, wrap;
    uint64_t packets, bytes, lost, overflowed;
    pthread_t thread;
};

static atomic_bool ending;

static void die(const char *what) {
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* splitmix64, as a number in [0, 1) */
static double next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static size_t record_size(size_t packet_size) {
    return (sizeof(struct packet) + packet_size + 7) & ~(size_t)7;
}

/* A place in the ring for one packet of the largest size, or NULL when the ring is full. */
static struct packet *room(struct direction *d) {
    size_t need = record_size(LARGEST_PACKET);
    if (d->tail >= d->head) {
        if (d->ring_size - d->tail >= need) return (struct packet *)(d->ring + d->tail);
        if (d->head <= need) return NULL; /* strictly: head == tail means empty */
        d->wrap = d->tail;
        d->tail = 0;
    }
    return d->head - d->tail > need ? (struct packet *)(d->ring + d->tail) : NULL;
}

static struct packet *oldest(struct direction *d) {
    if (d->head == d->tail) return NULL;
    if (d->tail < d->head && d->head == d->wrap) {
        d->head = 0;
        if (d->tail == 0) return NULL;
    }
    return (struct packet *)(d->ring + d->head);
}

static void take_in(struct direction *d, struct packet *packet, ssize_t size) {
    int64_t now = now_ns(), start = now - BURST_NS;
    if (d->loss > 0 && next_random(&d->random) < d->loss) {
        d->lost++;
        return;
    }
    if (d->link_free_ns > start) start = d->link_free_ns;
    if (d->ns_per_byte > 0 && start - now > d->queue_ns) {
        d->overflowed++;
        return;
    }
    d->link_free_ns = start + (int64_t)((double)size * d->ns_per_byte);
    packet->due_ns = (d->link_free_ns > now ? d->link_free_ns : now) + d->delay_ns;
    packet->size = (uint32_t)size;
    d->tail += record_size((size_t)size);
}

/* Read what waits, as much as there is room for; tell how many packets came. */
static int read_packets(struct direction *d) {
    for (int count = 0; count < READ_AT_ONCE; count++) {
        static _Thread_local unsigned char overflow[sizeof(struct packet) + LARGEST_PACKET];
        struct packet *packet = room(d);
        unsigned char *bytes = packet ? packet->bytes : overflow;
        ssize_t size = read(d->in, bytes, LARGEST_PACKET);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) return count;
        if (size < 0) die("cannot read from a device");
        if (packet)
            take_in(d, packet, size);
        else
            d->overflowed++;
    }
    return READ_AT_ONCE;
}

static void write_due(struct direction *d) {
    int64_t now = now_ns();
    for (struct packet *packet; (packet = oldest(d)) && packet->due_ns <= now;) {
        /* EIO: the device is not up yet; the packet is lost, as on a wire that leads nowhere. */
        if (write(d->out, packet->bytes, packet->size) < 0 && errno != EIO && errno != EAGAIN && errno != ENOBUFS)
            die("cannot write to a device");
        d->packets++;
        d->bytes += packet->size;
        d->head += record_size(packet->size);
    }
}

static void *carry(void *argument) {
    struct direction *d = argument;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        int came = read_packets(d);
        write_due(d);
        struct packet *next = oldest(d);
        if (ending && came == 0 && !next) return NULL;
        int64_t pause = next ? next->due_ns - now_ns() : LONGEST_PAUSE_NS;
        if (came == READ_AT_ONCE || pause <= 0) continue;
        if (came == 0 && pause > TICK_NS) { /* quiet: sleep until a packet comes or is due */
            struct pollfd waiting = {.fd = d->in, .events = POLLIN};
            struct timespec limit = {pause / 1000000000, pause % 1000000000};
            if (ppoll(&waiting, 1, &limit, NULL) < 0 && errno != EINTR) die("cannot wait");
            if (!(waiting.revents & POLLIN)) continue;
        }
        /* Busy: packets of a whole tick at once cost far fewer wake-ups. */
        struct timespec tick = {0, pause < TICK_NS ? pause : TICK_NS};
        nanosleep(&tick, NULL);
    }
}

static int open_device(const char *namespace, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) < 0) die(path);
    close(there);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) die("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (ioctl(device, TUNSETIFF, &request) < 0) die(name);
    return device;
}

static struct direction *start(int in, int out, char **shape, uint64_t stream) {
    struct direction *d = calloc(1, sizeof *d);
    if (!d) die("no memory");
    double rate_mbit = atof(shape[1]);
    d->in = in;
    d->out = out;
    d->delay_ns = (int64_t)(atof(shape[0]) * 1e6);
    d->ns_per_byte = rate_mbit > 0 ? 8000 / rate_mbit : 0;
    d->queue_ns = (int64_t)(atof(shape[2]) * 1e6);
    d->loss = atof(shape[3]);
    d->random = strtoull(shape[4], NULL, 10) * 2 + stream;
    /* Room for all that can be under way, even where every packet is as small as a packet can be. */
    double under_way = rate_mbit > 0 ? (double)(d->delay_ns + d->queue_ns + BURST_NS) / d->ns_per_byte : 0;
    double overhead = (double)record_size(SMALLEST_PACKET) / SMALLEST_PACKET;
    d->ring_size = rate_mbit > 0 ? (size_t)(under_way * overhead) : UNLIMITED_QUEUE_BYTES;
    d->ring_size = ((d->ring_size + 4 * record_size(LARGEST_PACKET)) + 7) & ~(size_t)7;
    d->ring = mmap(NULL, d->ring_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->ring == MAP_FAILED) die("no memory");
    if ((errno = pthread_create(&d->thread, NULL, carry, d)) != 0) die("no thread");
    return d;
}

/* Wait until all that is under way has arrived; traffic that does not cease is cut off. */
static void finish(struct direction *d) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += END_WITHIN_S;
    if (pthread_timedjoin_np(d->thread, NULL, &limit) != 0) fprintf(stderr, "relay: ended amid traffic\n");
}

static void report(const char *name, struct direction *d, const char *after) {
    printf("\"%s\": {\"packets\": %llu, \"bytes\": %llu, \"lost\": %llu, \"overflowed\": %llu}%s", name,
           (unsigned long long)d->packets, (unsigned long long)d->bytes, (unsigned long long)d->lost,
           (unsigned long long)d->overflowed, after);
}

int main(int count, char **argument) {
    if (count != 10) {
        fprintf(stderr, "usage: relay CLIENT_NS CLIENT_DEV SERVER_NS SERVER_DEV DELAY_MS RATE_MBIT QUEUE_MS LOSS SEED\n");
        return 2;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    int server = open_device(argument[3], argument[4]);
    int client = open_device(argument[1], argument[2]);
    struct direction *up = start(client, server, argument + 5, 0), *down = start(server, client, argument + 5, 1);
    puts("ready");
    fflush(stdout);
    int signal;
    sigwait(&ends, &signal);
    ending = true;
    finish(up);
    finish(down);
    printf("{");
    report("to_server", up, ", ");
    report("to_client", down, "}\n");
    return 0;
}
