//! What the guest is made of: Debian's packages, downloaded and unpacked, never installed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::limit::Limit;
use crate::cuda::Had;
use crate::process::{self, At as _};

/// Changes when what [`prepare`] leaves behind does.
const EDITION: &str = "1";

/// The metapackage of the kernel. Not the flavour for clouds: it is built without `rdma_rxe`.
const KERNEL: &str = "linux-image-amd64";

const PACKAGES: [&str; 7] = [
    "qemu-system-x86",
    "busybox-static",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "kmod",
    "libgcc-s1",
];

/// What packages need to be configured, which these never are.
const NOT_NEEDED: [&str; 19] = [
    "adduser",
    "cdebconf",
    "dbus",
    "debconf",
    "dpkg",
    "gcc-",
    "init-system",
    "iso-codes",
    "libasound2",
    "libpam",
    "libgstreamer",
    "login",
    "perl",
    "perl-base",
    "systemd",
    "tar",
    "udev",
    "util-linux",
    "xkb-data",
];

const TOOLS: [&str; 2] = ["ip", "rdma"];

/// Kernel modules of the guest, with all that these need. `crc32` is what `rdma_rxe` asks the
/// kernel's crypto for.
const MODULES: [&str; 10] = [
    "rdma_rxe",
    "ib_uverbs",
    "veth",
    "dummy",
    "virtio_pci",
    "virtio_net",
    "crc32_generic",
    "crc32-pclmul",
    "crc32c_generic",
    "crc32c-intel",
];

pub const LIBRARIES: &str = "lib/x86_64-linux-gnu";

/// The folder with the emulator (`root`), the kernel (`vmlinux`) and the base of the guest's file
/// system (`guest`); made where it is not there yet.
pub fn prepare(home: &Path, limit: &Limit) -> Result<Had> {
    let edition = home.join("edition");
    if fs::read_to_string(&edition).is_ok_and(|found| found == EDITION) {
        return Ok(Had::Here(home.to_path_buf()));
    }
    if let Some(reason) = obstacle() {
        return Ok(Had::Not(reason));
    }
    let (packages, root) = (home.join("packages"), home.join("root"));
    for folder in [&root, &home.join("guest")] {
        process::fresh_folder(folder)?;
    }
    // What a broken-off run has downloaded is not downloaded again.
    fs::create_dir_all(&packages).at(&packages)?;
    if !download(&packages, limit)? {
        return Ok(Had::Not("apt-get cannot download Debian's packages".into()));
    }
    for package in fs::read_dir(&packages)?.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(package.path()).arg(&root);
        ensure!(unpack.status()?.success(), "{} cannot be unpacked", package.path().display());
    }
    unpack_kernel(&root, &home.join("vmlinux"))?;
    stage(&root, &home.join("guest"))?;
    // What takes room and is not looked at again.
    for folder in
        ["packages", "root/lib/modules", "root/boot", "root/usr/share/doc", "root/usr/share/locale"]
    {
        let _ = fs::remove_dir_all(home.join(folder));
    }
    fs::write(&edition, EDITION).at(&edition)?;
    Ok(Had::Here(home.to_path_buf()))
}

/// Why this machine cannot make a guest, where it cannot.
fn obstacle() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some("its kernel and programs are for x86-64".into());
    }
    let tools = [
        ("apt-get", "--version"),
        ("apt-cache", "--version"),
        ("dpkg-deb", "--version"),
        ("xz", "--version"),
    ];
    let missing = tools.iter().find(|(tool, argument)| !process::answers(tool, &[argument]));
    missing.map(|(tool, _)| format!("{tool}, which fetches Debian's packages, is not installed"))
}

/// Downloads all packages into `folder`; false where that fails.
fn download(folder: &Path, limit: &Limit) -> Result<bool> {
    let Some(kernel) = kernel_package() else { return Ok(false) };
    let mut names = needed_by(&PACKAGES)?;
    names.push(kernel);
    println!("rxe: downloading {} packages", names.len());
    let patience =
        ["Acquire::Retries=3", "Acquire::http::Timeout=30", "Acquire::https::Timeout=30"];
    let mut fetch = process::command("apt-get", &["download", "--quiet=2"], folder);
    fetch.args(patience.iter().flat_map(|option| ["-o", option])).args(&names);
    limit.show("downloading Debian's packages", fetch)
}

/// The package that the metapackage of the kernel stands for today.
fn kernel_package() -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let depends = |line: &str| {
        line.trim().strip_prefix("Depends: linux-image-").map(|name| format!("linux-image-{name}"))
    };
    text.lines().find_map(depends)
}

fn needed_by(packages: &[&str]) -> Result<Vec<String>> {
    let mut ask = Command::new("apt-cache");
    ask.args([
        "depends",
        "--recurse",
        "--no-recommends",
        "--no-suggests",
        "--no-conflicts",
        "--no-breaks",
    ]);
    ask.args(["--no-replaces", "--no-enhances"]).args(packages);
    let output = ask.output().context("apt-cache depends")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names_in(&text))
}

/// The names of packages among `apt-cache depends`' lines: those at the beginning of a line, but
/// for what is not needed.
fn names_in(text: &str) -> Vec<String> {
    let is_name = |line: &&str| {
        line.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
    };
    let is_needed = |line: &&str| !NOT_NEEDED.iter().any(|start| line.starts_with(start));
    let mut names: Vec<String> =
        text.lines().filter(is_name).filter(is_needed).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// Unpacks the kernel once, here: an emulated machine takes seconds for it at every boot. QEMU
/// starts the file in it directly.
fn unpack_kernel(root: &Path, to: &Path) -> Result<()> {
    let boot = root.join("boot");
    let is_kernel = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    };
    let kernel = fs::read_dir(&boot)?.flatten().map(|entry| entry.path()).find(is_kernel);
    let kernel = kernel.with_context(|| format!("{} has no kernel", boot.display()))?;
    let packed = fs::read(&kernel).at(&kernel)?;
    const XZ: &[u8] = b"\xfd7zXZ\0";
    if let Some(start) = packed.windows(XZ.len()).position(|window| window == XZ) {
        let tail = to.with_extension("xz");
        fs::write(&tail, &packed[start..]).at(&tail)?;
        // What follows the compressed part is no part of it, of which `xz` complains.
        let unpacked =
            Command::new("xz").args(["-dc", "--single-stream"]).arg(&tail).output()?.stdout;
        let _ = fs::remove_file(&tail);
        if unpacked.starts_with(b"\x7fELF") {
            return fs::write(to, unpacked).at(to);
        }
    }
    // Packed otherwise: the guest unpacks it itself.
    fs::write(to, packed).at(to)
}

fn stage(root: &Path, guest: &Path) -> Result<()> {
    for folder in [
        "bin",
        "sbin",
        "lib64",
        LIBRARIES,
        "usr/lib/x86_64-linux-gnu/libibverbs",
        "etc/libibverbs.d",
    ] {
        fs::create_dir_all(guest.join(folder)).with_context(|| folder.to_owned())?;
    }
    for folder in
        ["proc", "sys", "dev", "run", "tmp", "root", "test", "usr/bin", "usr/sbin", "var/run"]
    {
        fs::create_dir_all(guest.join(folder)).with_context(|| folder.to_owned())?;
    }
    let copy = |from: &str, to: &str| {
        fs::copy(root.join(from), guest.join(to))
            .with_context(|| format!("{} to the guest", root.join(from).display()))
    };
    copy("bin/busybox", "bin/busybox")?;
    std::os::unix::fs::symlink("busybox", guest.join("bin/sh"))?;
    // The kernel calls it when rxe asks for its checksum.
    std::os::unix::fs::symlink("../bin/busybox", guest.join("sbin/modprobe"))?;
    for tool in TOOLS {
        let found =
            ["bin", "sbin", "usr/bin", "usr/sbin"].iter().map(|folder| format!("{folder}/{tool}"));
        let found = found
            .into_iter()
            .find(|path| root.join(path).is_file())
            .with_context(|| format!("no {tool}"))?;
        copy(&found, &format!("bin/{tool}"))?;
        copy_libraries_of(root, &root.join(found), guest)?;
    }
    // The driver of a kind of NIC is opened at run time: no list of libraries names it.
    let driver = "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
    copy("etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/rxe.driver")?;
    copy(driver, driver)?;
    copy("usr/lib/x86_64-linux-gnu/libibverbs.so.1", &format!("{LIBRARIES}/libibverbs.so.1"))?;
    copy_libraries_of(root, &root.join(driver), guest)?;
    fs::write(guest.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
    fs::write(guest.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    stage_modules(root, guest)
}

/// Copies every library that the program or library `of` needs into the guest.
pub fn copy_libraries_of(root: &Path, of: &Path, guest: &Path) -> Result<()> {
    let loader = root.join("lib64/ld-linux-x86-64.so.2");
    let folders = [root.join(LIBRARIES), root.join("usr").join(LIBRARIES)]
        .map(|folder| folder.display().to_string());
    let output = Command::new(&loader)
        .arg("--library-path")
        .arg(folders.join(":"))
        .arg("--list")
        .arg(of)
        .output();
    let output = output.at(&loader)?;
    ensure!(
        output.status.success(),
        "{}: {}",
        of.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    for path in String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let name = Path::new(path).file_name().context("a library's path ends in its name")?;
        let folder =
            if name.to_string_lossy().starts_with("ld-linux") { "lib64" } else { LIBRARIES };
        fs::copy(path, guest.join(folder).join(name)).with_context(|| path.to_owned())?;
    }
    Ok(())
}

/// Copies the kernel modules and what they need, with the lists that `modprobe` reads.
fn stage_modules(root: &Path, guest: &Path) -> Result<()> {
    let modules = root.join("lib/modules");
    let release =
        fs::read_dir(&modules)?.flatten().next().context("the package has modules")?.file_name();
    depmod(root, root, &release)?;
    let lists = fs::read_to_string(modules.join(&release).join("modules.dep"))?;
    for path in closure_of_modules(&lists, &MODULES) {
        let to = guest.join("lib/modules").join(&release).join(path);
        fs::create_dir_all(to.parent().context("a module lies in a folder")?)?;
        fs::copy(modules.join(&release).join(path), &to).with_context(|| path.to_owned())?;
    }
    for list in ["modules.builtin", "modules.order"] {
        fs::copy(
            modules.join(&release).join(list),
            guest.join("lib/modules").join(&release).join(list),
        )?;
    }
    depmod(root, guest, &release)
}

/// The modules' paths in `modules.dep`, with those that they need, each once.
fn closure_of_modules<'a>(lists: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let plain = |name: &str| name.replace('-', "_");
    let is_wanted = |line: &&str| {
        let file =
            line.split(':').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let name = file.split('.').next().unwrap_or_default();
        wanted.iter().any(|wanted| plain(wanted) == plain(name))
    };
    let lines = lists.lines().filter(is_wanted);
    let mut paths: Vec<&str> =
        lines.flat_map(|line| line.split([':', ' ']).filter(|path| !path.is_empty())).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Runs the fetched `depmod` for the modules below `of`.
fn depmod(root: &Path, of: &Path, release: &std::ffi::OsStr) -> Result<()> {
    let libraries = [root.join(LIBRARIES), root.join("usr").join(LIBRARIES)]
        .map(|folder| folder.display().to_string());
    let mut depmod = Command::new(root.join("bin/kmod"));
    depmod
        .arg0("depmod")
        .arg("-b")
        .arg(of)
        .arg(release)
        .env("LD_LIBRARY_PATH", libraries.join(":"));
    ensure!(
        depmod.output().context("depmod")?.status.success(),
        "depmod of {} fails",
        of.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_the_beginnings_of_lines() {
        let text =
            "kmod\n  Depends: libc6\n  Depends: <awk>\n    mawk\nlibc6\nperl-base\n<awk>\nkmod\n";
        assert_eq!(names_in(text), ["kmod", "libc6"]);
    }

    #[test]
    fn modules_come_with_what_they_need() {
        let lists = "kernel/a/crc32c-intel.ko:\n\
                     kernel/b/rdma_rxe.ko: kernel/c/ib_core.ko kernel/c/udp_tunnel.ko\n\
                     kernel/c/ib_core.ko:\n\
                     kernel/d/veth.ko.xz:\n\
                     kernel/e/veth_other.ko:\n";
        assert_eq!(
            closure_of_modules(lists, &["rdma_rxe", "crc32c_intel", "veth"]),
            [
                "kernel/a/crc32c-intel.ko",
                "kernel/b/rdma_rxe.ko",
                "kernel/c/ib_core.ko",
                "kernel/c/udp_tunnel.ko",
                "kernel/d/veth.ko.xz"
            ]
        );
    }
}
