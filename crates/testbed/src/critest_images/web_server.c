/* A web server that critest takes for nginx or httpd: NAME ADDRESS PORT. It answers every request with a page, has its pid in
   /var/run/NAME.pid, and calls itself "NAME: master process". */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char page[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void serve(int connection) {
    char request[4096];
    struct timeval limit = {.tv_sec = 5};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    /* Without a request, as from a probe of the port, there is no answer. */
    if (recv(connection, request, sizeof request, 0) > 0) {
        send(connection, page, sizeof page - 1, MSG_NOSIGNAL);
        shutdown(connection, SHUT_WR);
        while (recv(connection, request, sizeof request, 0) > 0) {}
    }
    close(connection);
}

int main(int argc, char **argv) {
    char name[64], path[128], title[128];
    if (argc != 3) return 2;
    char *slash = strrchr(argv[0], '/');
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : argv[0]);
    char *colon = strchr(name, ':');
    if (!colon) {
        snprintf(path, sizeof path, "/bin/%s", name);
        snprintf(title, sizeof title, "%s: master process", name);
        argv[0] = title;
        execv(path, argv);
        die(path);
    }
    *colon = 0;
    signal(SIGTERM, end);
    signal(SIGQUIT, end);
    signal(SIGINT, end);
    signal(SIGCHLD, SIG_IGN);

    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) return 2;
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address)) die("bind");
    if (listen(listener, 64)) die("listen");
    snprintf(path, sizeof path, "/var/run/%s.pid", name);
    FILE *file = fopen(path, "w");
    if (!file) die(path);
    fprintf(file, "%d\n", getpid());
    fclose(file);
    fprintf(stderr, "%s: serving on port %s\n", name, argv[2]);
    for (;;) {
        int connection = accept(listener, 0, 0);
        if (connection < 0) continue;
        if (fork() == 0) {
            serve(connection);
            _exit(0);
        }
        close(connection);
    }
}
