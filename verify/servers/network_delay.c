/* A network between a client and a server of this machine: every byte arrives DELAY microseconds later.
 *
 *     network_delay SERVER_PORT DELAY
 *
 * Listens on a port of the loopback interface, prints the port, and forwards each connection to the
 * server until its standard input is closed. As in a network, bytes that are under way do not keep later
 * ones from leaving: each piece has its own moment of arrival. A delay of 0 forwards at once. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINKS = 64, PIECE = 65536, MOST_UNDER_WAY = 64 << 20 };

struct piece {
    struct piece *next;
    int64_t due;
    size_t from, size;
    char bytes[];
};

struct direction {
    int source, sink;
    int ended; /* the source sends no more */
    size_t under_way;
    struct piece *first, *last;
};

struct link {
    int open;
    struct direction up, down;
};

static struct link links[MOST_LINKS];
static int64_t delay_ns;

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void forget(struct direction *way) {
    while (way->first) {
        struct piece *gone = way->first;
        way->first = gone->next;
        free(gone);
    }
    way->last = NULL;
}

static void close_link(struct link *link) {
    close(link->up.source);
    close(link->down.source);
    forget(&link->up);
    forget(&link->down);
    link->open = 0;
}

/* Take in what has arrived, or that the connection has ended. */
static void take_in(struct direction *way) {
    struct piece *one = malloc(sizeof *one + PIECE);
    if (!one) fail("malloc");
    ssize_t size = recv(way->source, one->bytes, PIECE, MSG_DONTWAIT);
    if (size <= 0) {
        way->ended = size == 0 || (errno != EAGAIN && errno != EINTR);
        free(one);
        return;
    }
    *one = (struct piece){.due = now() + delay_ns, .size = (size_t)size};
    *(way->first ? &way->last->next : &way->first) = one;
    way->last = one;
    way->under_way += (size_t)size;
}

/* Pass on what is due; 0 = the connection is broken or over. */
static int pass_on(struct direction *way) {
    int64_t moment = now();
    while (way->first && way->first->due <= moment) {
        struct piece *one = way->first;
        ssize_t sent = send(way->sink, one->bytes + one->from, one->size - one->from,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN || errno == EINTR;
        one->from += (size_t)sent;
        way->under_way -= (size_t)sent;
        if (one->from < one->size) return 1;
        way->first = one->next;
        free(one);
    }
    return way->first || !way->ended;
}

static int connected(int port) {
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int made = socket(AF_INET, SOCK_STREAM, 0);
    if (made < 0) fail("socket");
    if (connect(made, (struct sockaddr *)&server, sizeof server)) {
        close(made);
        return -1;
    }
    return made;
}

static void accept_link(int door, int server_port) {
    int on = 1, client = accept(door, NULL, NULL);
    if (client < 0) return;
    int server = connected(server_port);
    struct link *free_one = links;
    while (free_one < links + MOST_LINKS && free_one->open) free_one++;
    if (server < 0 || free_one == links + MOST_LINKS) {
        close(client);
        if (server >= 0) close(server);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *free_one = (struct link){1, {.source = client, .sink = server}, {.source = server, .sink = client}};
}

static int listening(void) {
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t size = sizeof here;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int door = socket(AF_INET, SOCK_STREAM, 0);
    if (door < 0 || bind(door, (struct sockaddr *)&here, size) || listen(door, MOST_LINKS)) fail("listen");
    if (getsockname(door, (struct sockaddr *)&here, &size)) fail("getsockname");
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    return door;
}

/* Wait until something arrives, or is due, or can be sent again. */
static void wait_for_news(struct pollfd *watched, nfds_t count, int64_t next) {
    int64_t left = next - now();
    if (left < 0) left = 0;
    struct timespec patience = {left / 1000000000, left % 1000000000};
    if (ppoll(watched, count, next == INT64_MAX ? NULL : &patience, NULL) < 0 && errno != EINTR) fail("ppoll");
}

int main(int count, char **given) {
    if (count != 3) {
        fputs("usage: network_delay SERVER_PORT DELAY_IN_MICROSECONDS\n", stderr);
        return 2;
    }
    int server_port = atoi(given[1]);
    delay_ns = atoll(given[2]) * 1000;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* a wait of half a millisecond must not become longer */
    int door = listening();
    for (;;) {
        struct pollfd watched[2 + 2 * MOST_LINKS];
        struct direction *ways[2 + 2 * MOST_LINKS];
        nfds_t many = 2;
        int64_t next = INT64_MAX, moment = now();
        watched[0] = (struct pollfd){.fd = 0, .events = POLLIN};
        watched[1] = (struct pollfd){.fd = door, .events = POLLIN};
        for (struct link *one = links; one < links + MOST_LINKS; one++) {
            for (int back = 0; one->open && back < 2; back++) {
                struct direction *way = back ? &one->down : &one->up, *other = back ? &one->up : &one->down;
                short events = !way->ended && way->under_way < MOST_UNDER_WAY ? POLLIN : 0;
                if (other->first && other->first->due <= moment) events |= POLLOUT; /* its sink is full */
                else if (other->first && other->first->due < next) next = other->first->due;
                ways[many] = way;
                watched[many++] = (struct pollfd){.fd = way->ended && !events ? -1 : way->source, .events = events};
            }
        }
        wait_for_news(watched, many, next);
        if (watched[0].revents) return 0;
        for (nfds_t at = 2; at < many; at++) {
            if (watched[at].revents & (POLLIN | POLLHUP | POLLERR) && !ways[at]->ended) take_in(ways[at]);
        }
        for (struct link *one = links; one < links + MOST_LINKS; one++) {
            if (one->open && (!pass_on(&one->up) || !pass_on(&one->down))) close_link(one);
        }
        if (watched[1].revents) accept_link(door, server_port);
    }
}
