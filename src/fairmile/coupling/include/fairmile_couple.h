/* A running simulation asks a model: fields out, fields in, at every step.
 *
 *     #define FAIRMILE_COUPLE_IMPLEMENTATION   // in one source file of the program
 *     #include "fairmile_couple.h"
 *
 *     int64_t shape[] = {nz, nx};
 *     fairmile_couple_rank(rank, size);                                        // only if there are several ranks
 *     fairmile_couple_out("temperature", t, FAIRMILE_DOUBLE, 2, shape);        // once
 *     fairmile_couple_in("heating", q, FAIRMILE_DOUBLE, 2, shape);             // once
 *     for (...) {
 *       if (fairmile_couple_step() == FAIRMILE_PHYSICS) own_physics(t, q);     // in the loop
 *     }
 *     fairmile_couple_end();
 *
 * The environment decides what answers, so that the same program runs with and without a model:
 *
 *     FAIRMILE_COUPLE            path of the model's socket; empty or unset: off, each step answers FAIRMILE_PHYSICS
 *     FAIRMILE_COUPLE_LAG        k: take the answer to step n-k at step n (0)
 *     FAIRMILE_COUPLE_EVERY      couple each n-th step (1)
 *     FAIRMILE_COUPLE_TIMEOUT_S  longest time to wait for an answer (60)
 *     FAIRMILE_COUPLE_START_S    longest time to wait for the model to be ready (300)
 *     FAIRMILE_COUPLE_FALLBACK   if no answer comes: stop (end the program, exit code 3), hold (keep the last answer) or
 *                                physics (stop)
 *
 * Where fairmile_meter.h is included before, a recorded run also shows what each step sends, receives and waits for.
 *
 * One process, one thread. No framework, no library; POSIX only. C99 and C++.
 */
#ifndef FAIRMILE_COUPLE_H
#define FAIRMILE_COUPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAIRMILE_FLOAT = 0, FAIRMILE_DOUBLE = 1, FAIRMILE_INT32 = 2, FAIRMILE_INT64 = 3 };

/* What fairmile_couple_step answers. */
enum {
  FAIRMILE_ANSWERED = 0, /* the fields hold the model's answer */
  FAIRMILE_HELD = 1,     /* no answer came in time, or none is due: the fields hold the last one */
  FAIRMILE_PHYSICS = 2,  /* no model, or no answer yet: compute it yourself */
  FAIRMILE_STOP = 3      /* the model asks the simulation to end; the fields are unchanged */
};

/* The number of this process among those of the program, before the first step. */
void fairmile_couple_rank(int rank, int size);

/* A field that the model reads or answers. `values` must stay where it is. Label: up to 64 of A-Z a-z 0-9 _ . - */
void fairmile_couple_out(const char *label, const void *values, int kind, int dims, const int64_t *shape);
void fairmile_couple_in(const char *label, void *values, int kind, int dims, const int64_t *shape);

/* The same for arrays in Fortran's order: the first index runs fastest. */
void fairmile_couple_field(const char *label, void *values, int kind, int dims, const int64_t *shape, int is_in,
                           int is_fortran);

/* Send the fields that go out, receive those that come in. */
int fairmile_couple_step(void);

/* Tell the model that the simulation has ended. At exit this happens by itself. */
void fairmile_couple_end(void);

#ifdef __cplusplus
}
#endif
#endif

#ifdef FAIRMILE_COUPLE_IMPLEMENTATION
#ifndef FAIRMILE_COUPLE_IMPLEMENTED
#define FAIRMILE_COUPLE_IMPLEMENTED

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef FAIRMILE_METER_H
enum { FAIRMILE_PUT = 0, FAIRMILE_GET = 1 };
#endif

#define FAIRMILE_COUPLE_MOST_FIELDS 64
#define FAIRMILE_COUPLE_MOST_DIMS 8

typedef struct {
  char label[65];
  void *values;
  int kind, dims, is_in, is_fortran;
  int64_t shape[FAIRMILE_COUPLE_MOST_DIMS], bytes, offset;
} fairmile_couple_a_field;

typedef struct {
  int64_t kind, step; /* kind: 1 a step, 2 an answer, 3 the end, 4 please stop, 5 ready */
} fairmile_couple_note;

static struct {
  int state; /* 0 not begun, 1 coupled, 2 without a model, 3 ended */
  int rank, size, count, socket, holds, is_stopping, is_late;
  int64_t lag, every, slots, slot_bytes, step, coupled, answered;
  double timeout_s, start_s;
  const char *fallback;
  char *memory;
  fairmile_couple_a_field fields[FAIRMILE_COUPLE_MOST_FIELDS];
} fairmile_coupled = {0, 0, 1, 0, -1, 0, 0, 0, 0, 1, 1, 0, 0, 0, -1, 0, 0, NULL, NULL, {{{0}, NULL, 0, 0, 0, 0, {0}, 0, 0}}};

static void fairmile_couple_fail(const char *what, const char *which) {
  fprintf(stderr, "fairmile_couple: rank %d, step %lld: %s%s\n", fairmile_coupled.rank,
          (long long)fairmile_coupled.step, what, which);
  exit(3);
}

static double fairmile_couple_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double fairmile_couple_number(const char *name, double usual, double least) {
  const char *text = getenv(name);
  char *end;
  double value;
  if (!text || !*text) return usual;
  value = strtod(text, &end);
  if (*end || !(value >= least) || value > 1e9) {
    fprintf(stderr, "fairmile_couple: %s is '%s': expected a number of at least %g\n", name, text, least);
    exit(2);
  }
  return value;
}

void fairmile_couple_rank(int rank, int size) {
  fairmile_coupled.rank = rank;
  fairmile_coupled.size = size;
}

void fairmile_couple_field(const char *label, void *values, int kind, int dims, const int64_t *shape, int is_in,
                           int is_fortran) {
  static const int bytes[] = {4, 8, 4, 8};
  fairmile_couple_a_field *field = &fairmile_coupled.fields[fairmile_coupled.count];
  size_t length = strlen(label);
  int at;
  if (fairmile_coupled.state) fairmile_couple_fail("declare fields before the first step: ", label);
  if (fairmile_coupled.count == FAIRMILE_COUPLE_MOST_FIELDS) fairmile_couple_fail("too many fields: ", label);
  if (kind < 0 || kind > 3 || dims < 0 || dims > FAIRMILE_COUPLE_MOST_DIMS)
    fairmile_couple_fail("unknown kind, or more than 8 dimensions: ", label);
  if (!length || length > 64 ||
      strspn(label, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != length)
    fairmile_couple_fail("a label has 1 to 64 of A-Z a-z 0-9 _ . -: ", label);
  for (at = 0; at < fairmile_coupled.count; at++)
    if (fairmile_coupled.fields[at].is_in == is_in && !strcmp(fairmile_coupled.fields[at].label, label))
      fairmile_couple_fail("declared twice: ", label);
  memcpy(field->label, label, length + 1);
  field->values = values;
  field->kind = kind;
  field->dims = dims;
  field->is_in = is_in;
  field->is_fortran = is_fortran;
  field->bytes = bytes[kind];
  for (at = 0; at < dims; at++) {
    if (shape[at] < 0) fairmile_couple_fail("negative size: ", label);
    field->shape[at] = shape[at];
    field->bytes *= shape[at];
  }
  fairmile_coupled.count++;
}

void fairmile_couple_out(const char *label, const void *values, int kind, int dims, const int64_t *shape) {
  fairmile_couple_field(label, (void *)(intptr_t)values, kind, dims, shape, 0, 0);
}

void fairmile_couple_in(const char *label, void *values, int kind, int dims, const int64_t *shape) {
  fairmile_couple_field(label, values, kind, dims, shape, 1, 0);
}

/* Shared memory without a name: nobody else can open it, and nothing is left of it. */
static int fairmile_couple_memory(int64_t bytes) {
  const char *folders[] = {"/dev/shm", NULL, "/tmp"};
  char path[512];
  int at, file;
  folders[1] = getenv("TMPDIR");
  for (at = 0; at < 3; at++) {
    if (!folders[at] || strlen(folders[at]) > 400) continue;
    snprintf(path, sizeof path, "%s/fairmile-couple-XXXXXX", folders[at]);
    file = mkstemp(path);
    if (file < 0) continue;
    unlink(path);
    if (ftruncate(file, (off_t)bytes)) {
      close(file);
      continue;
    }
    fairmile_coupled.memory = (char *)mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (fairmile_coupled.memory != (char *)MAP_FAILED) return file;
    close(file);
  }
  fairmile_couple_fail("no shared memory: ", strerror(errno));
  return -1;
}

/* Send all bytes, and a file with the first; 0 if the other side is gone. */
static int fairmile_couple_send(const char *bytes, size_t count, int file) {
  while (count) {
    struct iovec part;
    struct msghdr message;
    union {
      struct cmsghdr head;
      char room[CMSG_SPACE(sizeof(int))];
    } with;
    ssize_t sent;
    memset(&message, 0, sizeof message);
    part.iov_base = (void *)(intptr_t)bytes;
    part.iov_len = count;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (file >= 0) {
      struct cmsghdr *head;
      memset(&with, 0, sizeof with);
      message.msg_control = with.room;
      message.msg_controllen = sizeof with.room;
      head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      memcpy(CMSG_DATA(head), &file, sizeof(int));
    }
#ifdef MSG_NOSIGNAL
    sent = sendmsg(fairmile_coupled.socket, &message, MSG_NOSIGNAL);
#else
    sent = sendmsg(fairmile_coupled.socket, &message, 0);
#endif
    if (sent < 0) {
      if (errno == EINTR) continue;
      return 0;
    }
    bytes += sent;
    count -= (size_t)sent;
    file = -1;
  }
  return 1;
}

/* Receive a note until a time; 1: here it is, 0: none in time, -1: the other side is gone. */
static int fairmile_couple_receive(fairmile_couple_note *note, double until) {
  static char bytes[sizeof(fairmile_couple_note)];
  static size_t have = 0;
  while (have < sizeof bytes) {
    struct pollfd wait;
    double left = until - fairmile_couple_now();
    ssize_t got;
    int ready;
    wait.fd = fairmile_coupled.socket;
    wait.events = POLLIN;
    ready = poll(&wait, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return 0;
    got = recv(fairmile_coupled.socket, bytes + have, sizeof bytes - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    have += (size_t)got;
  }
  memcpy(note, bytes, sizeof bytes);
  have = 0;
  return 1;
}

static void fairmile_couple_lose(const char *why) {
  fprintf(stderr, "fairmile_couple: rank %d, step %lld: %s; fallback: %s\n", fairmile_coupled.rank,
          (long long)fairmile_coupled.step, why, fairmile_coupled.fallback);
  if (!strcmp(fairmile_coupled.fallback, "stop")) exit(3);
}

static void fairmile_couple_leave(void) {
  if (fairmile_coupled.socket >= 0) close(fairmile_coupled.socket);
  fairmile_coupled.socket = -1;
}

/* Connect to the model, and wait for its socket if it is not there yet; 0 if it does not come.

   Whoever starts both programs removes the folder of the socket when the model has ended. */
static int fairmile_couple_connect(const char *path, double until) {
  struct sockaddr_un address;
  struct timespec nap;
  char folder[sizeof address.sun_path] = ".";
  const char *slash = strrchr(path, '/');
  nap.tv_sec = 0;
  nap.tv_nsec = 20000000;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) fairmile_couple_fail("the path of the socket is too long: ", path);
  strcpy(address.sun_path, path);
  if (slash && slash > path) {
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = 0;
  }
  do {
    fairmile_coupled.socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fairmile_coupled.socket < 0) fairmile_couple_fail("no socket: ", strerror(errno));
    fcntl(fairmile_coupled.socket, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    {
      int on = 1;
      setsockopt(fairmile_coupled.socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
    }
#endif
    if (!connect(fairmile_coupled.socket, (struct sockaddr *)&address, sizeof address)) return 1;
    fairmile_couple_leave();
    nanosleep(&nap, NULL);
  } while (fairmile_couple_now() < until && !access(folder, F_OK));
  return 0;
}

/* Place the fields in memory, each at a multiple of 64 bytes, and describe them. */
static char *fairmile_couple_describe(void) {
  static const char *kinds[] = {"f4", "f8", "i4", "i8"};
  size_t room = 512 + (size_t)fairmile_coupled.count * 512, used;
  char *text = (char *)malloc(room);
  int at, dim;
  if (!text) fairmile_couple_fail("no memory", "");
  fairmile_coupled.slot_bytes = 64;
  for (at = 0; at < fairmile_coupled.count; at++) {
    fairmile_coupled.fields[at].offset = fairmile_coupled.slot_bytes;
    fairmile_coupled.slot_bytes += (fairmile_coupled.fields[at].bytes + 63) / 64 * 64;
  }
  used = (size_t)snprintf(text, room,
                          "{\"protocol\": 1, \"rank\": %d, \"size\": %d, \"pid\": %ld, \"lag\": %lld, \"every\": %lld, "
                          "\"slots\": %lld, \"slot_bytes\": %lld, \"fields\": [",
                          fairmile_coupled.rank, fairmile_coupled.size, (long)getpid(),
                          (long long)fairmile_coupled.lag, (long long)fairmile_coupled.every,
                          (long long)fairmile_coupled.slots, (long long)fairmile_coupled.slot_bytes);
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    used += (size_t)snprintf(text + used, room - used,
                             "%s{\"label\": \"%s\", \"way\": \"%s\", \"kind\": \"%s\", \"order\": \"%s\", \"offset\": "
                             "%lld, \"shape\": [",
                             at ? ", " : "", field->label, field->is_in ? "in" : "out", kinds[field->kind],
                             field->is_fortran ? "F" : "C", (long long)field->offset);
    for (dim = 0; dim < field->dims; dim++)
      used += (size_t)snprintf(text + used, room - used, "%s%lld", dim ? ", " : "", (long long)field->shape[dim]);
    used += (size_t)snprintf(text + used, room - used, "]}");
  }
  snprintf(text + used, room - used, "]}\n");
  return text;
}

static void fairmile_couple_begin(void) {
  const char *path = getenv("FAIRMILE_COUPLE");
  fairmile_couple_note note;
  double until;
  char *text;
  int file;
  fairmile_coupled.state = 2;
  if (!path || !*path) return;
  fairmile_coupled.lag = (int64_t)fairmile_couple_number("FAIRMILE_COUPLE_LAG", 0, 0);
  fairmile_coupled.every = (int64_t)fairmile_couple_number("FAIRMILE_COUPLE_EVERY", 1, 1);
  fairmile_coupled.timeout_s = fairmile_couple_number("FAIRMILE_COUPLE_TIMEOUT_S", 60, 0);
  fairmile_coupled.start_s = fairmile_couple_number("FAIRMILE_COUPLE_START_S", 300, 0);
  fairmile_coupled.fallback = getenv("FAIRMILE_COUPLE_FALLBACK");
  if (!fairmile_coupled.fallback || !*fairmile_coupled.fallback) fairmile_coupled.fallback = "stop";
  if (strcmp(fairmile_coupled.fallback, "stop") && strcmp(fairmile_coupled.fallback, "hold") &&
      strcmp(fairmile_coupled.fallback, "physics")) {
    fprintf(stderr, "fairmile_couple: FAIRMILE_COUPLE_FALLBACK is '%s': expected stop, hold or physics\n",
            fairmile_coupled.fallback);
    exit(2);
  }
  fairmile_coupled.slots = fairmile_coupled.lag + 1;
  until = fairmile_couple_now() + fairmile_coupled.start_s;
  if (!fairmile_couple_connect(path, until)) {
    fairmile_couple_lose("no model answers at its socket");
    return;
  }
  text = fairmile_couple_describe();
  file = fairmile_couple_memory(fairmile_coupled.slots * fairmile_coupled.slot_bytes);
  if (!fairmile_couple_send(text, strlen(text), file) || fairmile_couple_receive(&note, until) != 1 || note.kind != 5) {
    fairmile_couple_lose("the model did not become ready");
    fairmile_couple_leave();
  } else {
    fairmile_coupled.state = 1;
    atexit(fairmile_couple_end);
  }
  close(file);
  free(text);
}

/* Note for the trace when the exchange of one way begins (0), can move its bytes (1) and is over (2). */
static void fairmile_couple_trace(int way, int moment, int64_t step) {
#ifdef FAIRMILE_METER_H
  static int32_t exchanges[2] = {-1, -1};
  int64_t bytes = 0;
  int at;
  if (exchanges[way] < 0) {
    char key[40];
    if (!getenv("FAIRMILE_COMPONENT")) fairmile_component("solver");
    snprintf(key, sizeof key, "%s/%d", way == FAIRMILE_GET ? "answers" : "fields", fairmile_coupled.rank);
    exchanges[way] = fairmile_exchange(way, key, "model");
  }
  if (moment == 0) {
    fairmile_exchange_begin(exchanges[way]);
  } else if (moment == 1) {
    fairmile_exchange_ready(exchanges[way]);
  } else {
    for (at = 0; at < fairmile_coupled.count; at++)
      if (fairmile_coupled.fields[at].is_in == way) bytes += fairmile_coupled.fields[at].bytes;
    fairmile_exchange_end(exchanges[way], step, bytes);
  }
#else
  (void)way;
  (void)moment;
  (void)step;
#endif
}

/* Note for the trace that the step before has ended, and that the next one begins where there is one. */
static void fairmile_couple_turn(int begins) {
#ifdef FAIRMILE_METER_H
  if (fairmile_coupled.step) fairmile_phase_stop("step", fairmile_coupled.step - 1);
  if (begins) fairmile_phase_start("step", fairmile_coupled.step);
#else
  (void)begins;
#endif
}

/* Copy the fields of one way between the program and a slot of the shared memory. */
static void fairmile_couple_copy(int64_t step, int is_in) {
  char *slot = fairmile_coupled.memory + step % fairmile_coupled.slots * fairmile_coupled.slot_bytes;
  int at;
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    if (field->is_in != is_in) continue;
    if (is_in)
      memcpy(field->values, slot + field->offset, (size_t)field->bytes);
    else
      memcpy(slot + field->offset, field->values, (size_t)field->bytes);
  }
}

static int fairmile_couple_without(void) {
  if (fairmile_coupled.fallback && !strcmp(fairmile_coupled.fallback, "hold") && fairmile_coupled.holds)
    return FAIRMILE_HELD;
  return FAIRMILE_PHYSICS;
}

/* Wait for the answer to a step; a late one to an earlier step only frees its slot. */
static int fairmile_couple_wait(int64_t step) {
  double until = fairmile_couple_now() + fairmile_coupled.timeout_s;
  fairmile_couple_note note;
  while (fairmile_coupled.answered < step) {
    int got = fairmile_couple_receive(&note, until);
    if (got < 0) {
      fairmile_couple_lose("the model has ended");
      fairmile_couple_leave();
      fairmile_coupled.state = 2;
      return 0;
    }
    if (!got) {
      fairmile_coupled.is_late = 1;
      fairmile_couple_lose("no answer in time");
      return 0;
    }
    if (note.kind == 4) {
      fairmile_coupled.is_stopping = 1;
      return 0;
    }
    if (note.kind == 2) fairmile_coupled.answered = note.step;
  }
  return 1;
}

int fairmile_couple_step(void) {
  fairmile_couple_note note;
  int64_t step, due;
  if (!fairmile_coupled.state) fairmile_couple_begin();
  fairmile_couple_turn(1);
  if (fairmile_coupled.state != 1) {
    fairmile_coupled.step++;
    return fairmile_couple_without();
  }
  if (fairmile_coupled.step++ % fairmile_coupled.every)
    return fairmile_coupled.holds ? FAIRMILE_HELD : FAIRMILE_PHYSICS;
  step = fairmile_coupled.coupled;
  /* Its slot must be free: the model has answered what was in it. */
  if (step >= fairmile_coupled.slots && fairmile_coupled.answered < step - fairmile_coupled.slots) {
    if (!fairmile_couple_wait(step - fairmile_coupled.slots))
      return fairmile_coupled.is_stopping ? FAIRMILE_STOP : fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_PUT, 0, step);
  fairmile_couple_copy(step, 0);
  note.kind = 1;
  note.step = step;
  if (!fairmile_couple_send((const char *)&note, sizeof note, -1)) {
    fairmile_couple_lose("the model has ended");
    fairmile_couple_leave();
    fairmile_coupled.state = 2;
    return fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_PUT, 2, step);
  fairmile_coupled.coupled++;
  due = step - fairmile_coupled.lag;
  if (due < 0) return FAIRMILE_PHYSICS;
  fairmile_couple_trace(FAIRMILE_GET, 0, due);
  if (!fairmile_couple_wait(due)) {
    fairmile_couple_trace(FAIRMILE_GET, 2, due);
    return fairmile_coupled.is_stopping ? FAIRMILE_STOP : fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_GET, 1, due);
  fairmile_couple_copy(due, 1);
  fairmile_couple_trace(FAIRMILE_GET, 2, due);
  fairmile_coupled.holds = 1;
  return FAIRMILE_ANSWERED;
}

void fairmile_couple_end(void) {
  fairmile_couple_note note;
  if (fairmile_coupled.state && fairmile_coupled.state != 3) fairmile_couple_turn(0);
  if (fairmile_coupled.state == 1 && fairmile_coupled.socket >= 0) {
    /* Steps whose answers nobody uses any more are still seen by the model, which may be learning from them. */
    double until = fairmile_couple_now() + fairmile_coupled.timeout_s;
    while (!fairmile_coupled.is_late && !fairmile_coupled.is_stopping &&
           fairmile_coupled.answered < fairmile_coupled.coupled - 1 && fairmile_couple_receive(&note, until) == 1)
      if (note.kind == 2) fairmile_coupled.answered = note.step;
    note.kind = 3;
    note.step = fairmile_coupled.coupled;
    fairmile_couple_send((const char *)&note, sizeof note, -1);
  }
  fairmile_couple_leave();
  fairmile_coupled.state = 3;
}

#endif
#endif
