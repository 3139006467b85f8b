"""Guests: QEMU processes, each with a command to run, watched until all commands have ended."""
import contextlib
import ctypes
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time

import image

WENT_DOWN, TIMED_OUT, NEVER_CAME_UP = 123, 124, 125  # beside 126 and 127, which are the shell's
KERNEL = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off"
PANIC = "Kernel panic"
libc = ctypes.CDLL(None)


class Failed(Exception):
    """No command ran to its end; has the status to exit with."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Output:
    """One output of a command, copied up to the mark that the guest writes behind it."""

    def __init__(self, sink, prefix, mark):
        self.sink, self.prefix, self.mark = sink, prefix, mark
        self.held, self.line, self.ended = b"", b"", False

    def feed(self, data):
        if self.ended:
            return
        self.held += data
        at = self.held.find(self.mark)
        self.ended = at >= 0
        if not self.ended:  # what may be the beginning of the mark waits for the rest
            first = max(0, len(self.held) - len(self.mark))
            at = next(at for at in range(first, len(self.held) + 1) if self.mark.startswith(self.held[at:]))
        self.write(self.held[:at])
        self.held = self.held[at:]
        if self.ended:
            self.flush()

    def flush(self):
        """Also a last line that has no end."""
        if self.line:
            self.write(b"\n")

    def write(self, data):
        if self.prefix:
            *lines, self.line = (self.line + data).split(b"\n")
            data = b"".join(self.prefix + line + b"\n" for line in lines)
        self.sink.write(data)
        self.sink.flush()


class Guest:
    """One QEMU, which dies with this process. It has only pipes and sockets that it inherits, and no files, so that
    nothing is left behind however it ends."""

    def __init__(self, options, number, command, link):
        self.name = f"guest {number}" if options.peers > 1 else "the guest"
        self.console, self.errors, self.control = b"", b"", b""
        self.ready, self.status, self.failure = False, None, None
        self.show_console = options.console
        self.readers, self.inherited = {}, [link] if link is not None else []
        mark = f"\1weft-vm {secrets.token_hex(8)}\n"
        prefix = f"[{number}] ".encode() if options.peers > 1 else b""
        self.outputs = [Output(sink.buffer, prefix, mark.encode()) for sink in (sys.stdout, sys.stderr)]
        settings = {"devices": options.devices, "peer": number if options.peers > 1 else "", "out": options.out or "",
                    "end": mark, "command": command}
        job = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items())
        arguments = [image.tool("qemu-system-x86_64"), *self.machine(options), *self.talk(job), *shares(options)]
        if link is not None:
            mac = f"52:54:00:00:80:0{number + 1}"
            arguments += ["-netdev", f"socket,id=peer,fd={link}",
                          "-device", f"virtio-net-pci,netdev=peer,mac={mac},romfile="]
        errors, parent = self.receive(self.hear_errors), os.getpid()

        def die_with_parent():
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                                        pass_fds=self.inherited, preexec_fn=die_with_parent)
        for descriptor in self.inherited:
            os.close(descriptor)

    def machine(self, options):
        return ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", *accelerator(options),
                "-cpu", "max", "-smp", str(options.cpus), "-m", str(options.memory),
                "-kernel", f"{options.image}/kernel", "-initrd", f"{options.image}/initrd", "-append", KERNEL]

    def talk(self, job):
        """The job goes in by a file of the firmware, control both ways, the console and the outputs come out."""
        self.inherited.append(os.memfd_create("job"))
        os.write(self.inherited[-1], job.encode())
        arguments = ["-fw_cfg", f"name=opt/weft/job,file=/dev/fd/{self.inherited[-1]}", "-device", "virtio-serial-pci"]
        self.socket, theirs = socket.socketpair()
        self.readers[self.socket.fileno()] = self.hear_control
        self.inherited.append(theirs.detach())
        arguments += ["-chardev", f"socket,id=control,fd={self.inherited[-1]}"]
        for name, function in (("out", self.outputs[0].feed), ("err", self.outputs[1].feed),
                               ("console", self.hear_console)):
            arguments += ["-chardev", f"file,id={name},path=/dev/fd/{self.receive(function)}"]
        for number, name in enumerate(("control", "out", "err"), 1):
            arguments += ["-device", f"virtserialport,nr={number},chardev={name}"]
        return [*arguments, "-serial", "chardev:console"]

    def receive(self, function):
        """A new pipe's end to write to; what comes through it is given to the function."""
        ours, theirs = os.pipe()
        self.readers[ours] = function
        self.inherited.append(theirs)
        return theirs

    def hear_control(self, data):
        *lines, self.control = (self.control + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "ready":
                self.ready = True
            elif word == "status":
                self.status = int(rest)
            elif word == "failed":
                self.failure = rest

    def hear_console(self, data):
        self.console = (self.console + data)[-1 << 16:]
        if self.show_console:
            sys.stderr.buffer.write(data.replace(b"\r", b""))
            sys.stderr.flush()

    def hear_errors(self, data):
        self.errors = (self.errors + data)[-1 << 16:]

    def ended(self):
        return self.status is not None and all(output.ended for output in self.outputs)

    def kill(self):
        self.process.kill()
        self.process.wait()
        for output in self.outputs:
            output.flush()

    def last_words(self):
        text = (self.console + b"\n" + self.errors).decode(errors="replace").replace("\r", "")
        lines = [line for line in text.splitlines() if line.strip()]
        panic = next((at for at, line in enumerate(lines) if PANIC in line), len(lines) - 30)
        return "".join(f"\n  {line}" for line in lines[max(0, panic):][:30])


def accelerator(options):
    """KVM only where the processor has what it builds upon: there are machines whose /dev/kvm opens and then hangs."""
    kvm = options.accel == "kvm"
    if options.accel == "auto" and os.access("/dev/kvm", os.R_OK | os.W_OK):
        with open("/proc/cpuinfo") as file:
            kvm = re.search(r"^flags\s*:.*\b(vmx|svm)\b", file.read(), re.MULTILINE)
    return ["-accel", "kvm" if kvm else "tcg,thread=multi"]


def shares(options):
    arguments = ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
    if options.out:
        path = options.out.replace(",", ",,")
        arguments += ["-virtfs", f"local,path={path},mount_tag=out,security_model=none,multidevs=remap"]
    return arguments


def run(options, commands):
    """Runs one command in each guest; the worst of their statuses. Failed, when a command could not end by itself."""
    guests, links = [], [None]
    try:
        if options.peers == 2:
            links = [end.detach() for end in socket.socketpair()]
        for number, command in enumerate(commands):
            guests.append(Guest(options, number, command, links[number]))
        watch(guests, options.boot_timeout, options.timeout)
    finally:
        for guest in guests:
            guest.kill()
    return max(guest.status for guest in guests)


def watch(guests, boot_timeout, timeout):
    """Returns when all commands have ended. They start together, once all guests are up, and no guest goes before all
    have ended: another may still need its network."""
    selector = selectors.DefaultSelector()
    for guest in guests:
        for descriptor, function in guest.readers.items():
            selector.register(descriptor, selectors.EVENT_READ, (guest, function))
    started, deadline = False, time.monotonic() + boot_timeout
    while not all(guest.ended() for guest in guests):
        for key, _ in selector.select(max(0, deadline - time.monotonic())):
            guest, function = key.data
            data = os.read(key.fd, 1 << 16)
            if data:
                function(data)
            else:
                selector.unregister(key.fd)
                del guest.readers[key.fd]
        for guest in guests:
            if guest.failure:
                raise Failed(NEVER_CAME_UP, f"{guest.name} could not be set up: {guest.failure}{guest.last_words()}")
            if not guest.readers and not guest.ended():
                raise gone(guest, started)
        if not started and all(guest.ready for guest in guests):
            started, deadline = True, time.monotonic() + timeout
            for guest in guests:
                with contextlib.suppress(OSError):  # one that is gone is found out about in the next round
                    guest.socket.sendall(b"go\n")
        if time.monotonic() >= deadline and not all(guest.ended() for guest in guests):
            raise late(guests, started, timeout if started else boot_timeout)


def gone(guest, started):
    panicked = PANIC.encode() in guest.console
    what = f"the kernel of {guest.name} panicked" if panicked else f"{guest.name} went down"
    when = "before its command had ended" if started else "before it was up"
    return Failed(WENT_DOWN if started else NEVER_CAME_UP, f"{what} {when}{guest.last_words()}")


def late(guests, started, timeout):
    names = " and ".join(guest.name for guest in guests if not (guest.ended() if started else guest.ready))
    words = "".join(guest.last_words() for guest in guests)
    if started:
        return Failed(TIMED_OUT, f"timed out: the command in {names} had not ended after {timeout:g} s{words}")
    return Failed(NEVER_CAME_UP, f"{names} did not come up within {timeout:g} s, see --console and --accel{words}")
