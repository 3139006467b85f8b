// A port forwarder in user space, as it stands between hosts that cannot reach each other.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

namespace weft::testing {

// IPv4 ports of one host, each of which stands for the port of the same number further on at another.
struct Forwarded {
  const char* at;
  uint16_t port;
  const char* to;
  uint16_t to_port;
  uint16_t count = 1;
};

inline sockaddr_in forwarded_address(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

// From one connection to the other until its end, which is passed on.
inline void forward_bytes(int from, int to) {
  char bytes[1 << 16];
  for (ssize_t got = 0; (got = ::recv(from, bytes, sizeof bytes, 0)) > 0;) {
    for (ssize_t sent = 0, more = 0; sent < got; sent += more) {
      more = ::send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more <= 0) break;
    }
  }
  ::shutdown(to, SHUT_WR);
}

// For a process of its own: forwards until it is killed.
[[noreturn]] inline void forward_ports(const Forwarded& ports) {
  for (int i = 0; i < ports.count; ++i) {
    const sockaddr_in at = forwarded_address(ports.at, ports.port + i),
                      to = forwarded_address(ports.to, ports.to_port + i);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || ::listen(listener, 64) != 0) {
      ::_exit(99);
    }
    std::thread([listener, to] {
      for (int in = -1; (in = ::accept(listener, nullptr, nullptr)) >= 0;) {
        std::thread([in, to] {
          const int out = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
          if (::connect(out, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
            std::thread back(forward_bytes, out, in);
            forward_bytes(in, out);
            back.join();
          }
          ::close(in);
          ::close(out);
        }).detach();
      }
    }).detach();
  }
  for (;;) ::pause();
}

}  // namespace weft::testing
