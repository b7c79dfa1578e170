#!/usr/bin/env python3
"""A forward proxy for tests: tunnels (CONNECT) and plain requests. Standard library only.

    proxy.py --log FILE [--credentials USER:PASSWORD]

It prints `listening 127.0.0.1:PORT`, and writes `METHOD TARGET` for each request to the log, with ` denied` behind it
where the credentials are missing or wrong.
"""

import argparse
import base64
import select
import socket
import socketserver
import urllib.parse

ARGUMENTS = None


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return
        method, target, _ = line
        headers = []
        while (header := self.rfile.readline(65536)) not in (b"\r\n", b"\n", b""):
            headers.append(header)
        named = {header.split(b":")[0].lower(): header.split(b":", 1)[1].strip() for header in headers}
        allowed = True
        if ARGUMENTS.credentials:
            wanted = b"Basic " + base64.b64encode(ARGUMENTS.credentials.encode())
            allowed = named.get(b"proxy-authorization") == wanted
        with open(ARGUMENTS.log, "a", encoding="utf-8") as log:
            log.write(f"{method} {target}{'' if allowed else ' denied'}\n")
        if not allowed:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        if method == "CONNECT":
            host, port = target.rsplit(":", 1)
            with socket.create_connection((host, int(port)), 10) as other:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self.pump(other)
            return
        url = urllib.parse.urlsplit(target)
        with socket.create_connection((url.hostname, url.port or 80), 10) as other:
            path = url.path + (f"?{url.query}" if url.query else "")
            kept = [header for header in headers if not header.lower().startswith((b"proxy-", b"connection:"))]
            other.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(kept) + b"Connection: close\r\n\r\n")
            self.pump(other)

    def pump(self, other):
        sides = {self.connection: other, other: self.connection}
        while True:
            for side in select.select(list(sides), [], [])[0]:
                data = side.recv(65536)
                if not data:
                    return
                sides[side].sendall(data)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        pass


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--credentials")
    ARGUMENTS = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    print(f"listening 127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
