"""The kernel and the initramfs that the guests boot: made once, and kept in a folder."""
import contextlib
import fcntl
import hashlib
import lzma
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GUEST = [HERE / "guest" / name for name in ("init", "rails")]
# crc32 is what rxe takes for its checksums; overlay makes /tmp writable; netem delays and loses packets.
MODULES = ["virtio_pci", "virtio_console", "qemu_fw_cfg", "9pnet_virtio", "9p", "overlay", "virtio_net", "veth",
           "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "sch_netem"]
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "depmod": "kmod",
         "modprobe": "kmod", "ip": "iproute2", "rdma": "iproute2", "apt-get": "apt", "apt-cache": "apt",
         "dpkg-deb": "dpkg"}
META_PACKAGE = "linux-image-amd64"
DOWNLOAD_SECONDS = 240


class Missing(Exception):
    """Something that a guest needs cannot be had here; the text says what."""


def tool(name):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Missing(f"{name} is not installed (Debian package {TOOLS[name]})")
    return path


def run(*command, **options):
    """The standard output; Missing, with the last line of the errors, when it fails."""
    try:
        return subprocess.run(list(map(str, command)), check=True, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options).stdout
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"ended with status {error.returncode}"])[-1]
        raise Missing(f"{os.path.basename(command[0])} {command[1]}: {last}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{os.path.basename(command[0])} {command[1]}: no end after {DOWNLOAD_SECONDS} s") from None


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weft-vm"


def image(update=False):
    """The folder with `kernel` and `initrd`. Nothing is downloaded while there is a kernel, unless it is to be updated.

    One process at a time builds, others wait for it; what is there is whole, since it comes by a rename."""
    reason = os.environ.get("WEFT_TEST_NO_VM")
    if reason:
        raise Missing(reason)
    if platform.machine() != "x86_64":
        raise Missing(f"the guests are x86_64, this is {platform.machine()}")
    for name in TOOLS:
        tool(name)
    try:
        folder = cache()
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder.glob("part-*"):
                shutil.rmtree(left, ignore_errors=True)
            kernels = sorted(folder.glob("linux-image-*.deb"), key=lambda path: path.stat().st_mtime)
            if update or not kernels:
                kernels.append(download(folder))
            return built(folder, kernels[-1])
    except OSError as error:
        raise Missing(str(error)) from None


def download(folder):
    said = run(tool("apt-cache"), "depends", META_PACKAGE)
    found = re.search(r"Depends: (linux-image-\S+)", said)
    if not found:
        raise Missing(f"apt-cache knows no kernel for {META_PACKAGE}")
    with scratch(folder) as part:
        run(tool("apt-get"), "download", "-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", found[1],
            cwd=part, timeout=DOWNLOAD_SECONDS)
        kernel = next(part.glob("linux-image-*.deb"))
        return kernel.rename(folder / kernel.name)


@contextlib.contextmanager
def scratch(folder):
    path = pathlib.Path(tempfile.mkdtemp(prefix="part-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def built(folder, kernel):
    busybox = pathlib.Path(tool("busybox")).read_bytes()
    if not static(busybox):
        raise Missing("busybox is not linked statically (Debian package busybox-static)")
    digest = hashlib.sha256(" ".join([kernel.name, *MODULES]).encode())
    for content in [busybox, pathlib.Path(__file__).read_bytes(), *(path.read_bytes() for path in GUEST)]:
        digest.update(hashlib.sha256(content).digest())
    release = kernel.name.split("_")[0].removeprefix("linux-image-")
    result = folder / f"{release}-{digest.hexdigest()[:12]}"
    if not result.is_dir():
        with scratch(folder) as part:
            tree = part / "kernel"
            run(tool("dpkg-deb"), "-x", kernel, tree)
            (part / "image").mkdir()
            packed = (tree / "boot" / f"vmlinuz-{release}").read_bytes()
            (part / "image" / "kernel").write_bytes(unpacked(packed))
            initramfs(part / "initrd", modules(tree, release), part / "image" / "initrd")
            (part / "image").rename(result)
    return result


def unpacked(kernel):
    """The kernel proper out of a bzImage. Unpacking itself takes an emulated kernel longer than the rest of booting."""
    start = (kernel[0x1F1] + 1) * 512 + struct.unpack_from("<I", kernel, 0x248)[0]
    payload = kernel[start:start + struct.unpack_from("<I", kernel, 0x24C)[0]]
    return lzma.LZMADecompressor().decompress(payload) if payload.startswith(b"\xfd7zXZ") else kernel


def static(program):
    """Whether this ELF file asks for no loader."""
    first, size, count = struct.unpack_from("<Q14xHH", program, 32)
    return all(struct.unpack_from("<I", program, first + i * size)[0] != 3 for i in range(count))  # PT_INTERP


def modules(tree, release):
    """The files of the modules and of what they need, in the order in which they load."""
    if not (tree / "lib").exists():  # newer packages have all in /usr
        (tree / "lib").symlink_to("usr/lib")
    run(tool("depmod"), "-b", tree, release)
    lines = run(tool("modprobe"), "-C", "/dev/null", "-d", tree, "-S", release, "--show-depends", "-a", *MODULES)
    files = [line.split()[1] for line in lines.splitlines() if line.startswith("insmod")]
    return [pathlib.Path(path) for path in dict.fromkeys(files)]


def initramfs(tree, module_files, result):
    for name in ("bin", "proc", "sys", "dev", "host", "modules", "pipes", "scratch"):
        (tree / name).mkdir(parents=True)
    shutil.copy(tool("busybox"), tree / "bin" / "busybox")
    for path in GUEST:
        shutil.copy(path, tree)
    for path in module_files:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content, path = lzma.decompress(content), path.with_suffix("")
        (tree / "modules" / path.name).write_bytes(content)
        with open(tree / "modules" / "order", "a") as order:
            order.write(path.name + "\n")
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    with open(result, "wb") as out:
        subprocess.run([tool("cpio"), "-o", "-H", "newc", "-R", "+0:+0", "--quiet"], cwd=tree, input=names.encode(),
                       stdout=out, check=True)
