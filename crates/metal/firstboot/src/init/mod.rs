//! The initrd's init process: mounts the root, runs Ignition and starts the system's init.
//!
//! The root is a tmpfs that the image is unpacked into, or an installed disk. With `windlass.install` a disk is
//! installed and the machine reboots. Read [`run`] first.

mod archive;
pub(crate) mod cmdline;
mod install;
mod layout;
mod network;
mod volumes;

use std::{
    cell::Cell,
    convert::Infallible,
    fs,
    io::Read,
    os::unix::{
        fs::{OpenOptionsExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use tokio::time::Instant;

use sys::{HostPrograms, Programs};

use crate::{
    Error,
    cmd::run_stage,
    report::{self, Outcome},
};
use cmdline::{Plan, RootLocation};

const SYSROOT: &str = "/sysroot";
/// The root archive, from the second part of the image.
const ARCHIVE: &str = "/rootfs.cpio.gz";
const CONFIG: &str = "/run/ignition.json";
const NEED_NETWORK: &str = "/run/ignition/neednet";
/// The binary, which only the first part of the image contains but both need.
const BINARY: &str = "/usr/bin/windlass";

/// Boots the machine. Does not return after a failure, because process 1 must not exit.
pub fn run() -> std::process::ExitCode {
    if std::process::id() != 1 {
        eprintln!("init: init must run as process 1 of an initrd, because it partitions disks");
        return std::process::ExitCode::FAILURE;
    }
    let progress = Progress::new();
    let Err(error) = boot(&progress);
    eprintln!(
        "\n*** The boot has stopped: {error}\n*** Fix the cause, then power-cycle the machine.\n"
    );
    // Ignition's stages report their own failures. Failures between stages are reported for the last stage.
    if !progress.told.get() {
        tell(progress.stage.get(), Outcome::Failed, &error.to_string());
    }
    loop {
        std::thread::park();
    }
}

/// The progress of the boot.
struct Progress {
    started: Instant,
    /// The stage that started last.
    stage: Cell<&'static str>,
    /// `true` if the server was told that this stage failed.
    told: Cell<bool>,
}

impl Progress {
    fn new() -> Self {
        Self { started: Instant::now(), stage: Cell::new("fetch"), told: Cell::new(false) }
    }

    fn step(&self, what: &str) {
        eprintln!("[{:6.2}] init: {what}", self.started.elapsed().as_secs_f64());
    }

    fn stage(&self, name: &'static str, platform: &str) -> Result<(), Error> {
        self.step(&format!("Ignition: {name}"));
        self.stage.set(name);
        let result = run_stage(&["--platform", platform, "--root", SYSROOT, "--stage", name]);
        self.told.set(result.is_err());
        result
    }
}

/// Reports an event that is not a stage of Ignition.
fn tell(stage: &str, outcome: Outcome, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Ok(runtime) = runtime {
        runtime.block_on(report::send(stage, outcome, text));
    }
}

fn boot(progress: &Progress) -> Result<Infallible, Error> {
    let step = |what: &str| progress.step(what);
    kernel_filesystems()?;
    let line = cmdline::read()?;
    let plan = Plan::of(&line);
    step(&format!("{:?}", plan.place));
    devices()?;
    step("devices are ready");
    if !has_random_numbers() {
        step(
            "waiting for random numbers: the machine has no hardware source such as RDRAND or virtio-rng",
        );
    }
    if plan.ignite {
        ignite(&plan, &line, progress)?;
    } else if let RootLocation::Disk(root) = &plan.place {
        volumes::open(&line, &HostPrograms, &step)?;
        mount_root(&cmdline::device(root), "auto", "rw")?;
    }
    if let RootLocation::Install(disk) = &plan.place {
        install::finish(disk)?;
        step("installed; booting again");
        tell("installed", Outcome::Succeeded, "");
        rustix::fs::sync();
        let outcome = rustix::system::reboot(rustix::system::RebootCommand::Restart);
        return Err(Error::file("restarting", "the machine")(
            outcome
                .err()
                .map_or_else(|| std::io::Error::other("the call returned"), std::io::Error::from),
        ));
    }
    step("leaving the initrd");
    leave()
}

fn ignite(plan: &Plan, line: &str, progress: &Progress) -> Result<(), Error> {
    let platform = plan.platform.clone().unwrap_or_else(|| {
        let firmware = Path::new("/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw");
        if firmware.exists() { "qemu" } else { "metal" }.to_owned()
    });
    let stage = |name| progress.stage(name, &platform);
    let step = |what: &str| progress.step(what);
    stage("fetch-offline")?;
    if Path::new(NEED_NETWORK).exists() || report::address(line).is_some() {
        network::up(&HostPrograms, &step)?;
    }
    stage("fetch")?;
    if let RootLocation::Install(disk) = &plan.place {
        install::lay_out(disk, Path::new(CONFIG))?;
    }
    stage("kargs")?;
    stage("disks")?;
    match &plan.place {
        RootLocation::Memory => {
            fs::create_dir_all(SYSROOT).map_err(Error::file("making", SYSROOT))?;
            let command = ["mount", "-t", "tmpfs", "-o", "mode=0755,size=80%", "root", SYSROOT];
            HostPrograms.must(&command)?;
        }
        RootLocation::Disk(root) => mount_root(&cmdline::device(root), "auto", "rw")?,
        RootLocation::Install(_) => {
            let (device, format) = install::root(&layout::read_typed(Path::new(CONFIG))?)?;
            mount_root(&device, &format, "rw")?;
        }
    }
    stage("mount")?;
    if !matches!(plan.place, RootLocation::Disk(_)) {
        let count = unpack()?;
        step(&format!("{count} files of the root are unpacked"));
    }
    stage("files")?;
    if matches!(plan.place, RootLocation::Install(_)) {
        install::boot_loader(line, &layout::read_typed(Path::new(CONFIG))?)?;
        step("the boot loader is in place");
    }
    stage("umount")
}

fn unpack() -> Result<usize, Error> {
    let archive = Path::new(ARCHIVE);
    if !archive.exists() {
        let reason =
            "the image's second part, rootfs.img, was not loaded; name it as another initrd"
                .to_owned();
        return Err(Error::Refused { what: ARCHIVE.to_owned(), reason });
    }
    let count = archive::unpack(archive, Path::new(SYSROOT))?;
    // Free its memory for the following stages.
    fs::remove_file(archive).map_err(Error::file("removing", archive))?;
    let to = format!("{SYSROOT}{BINARY}");
    fs::copy(BINARY, &to).map_err(Error::file("copying the binary to", &to))?;
    Ok(count)
}

fn kernel_filesystems() -> Result<(), Error> {
    for (kind, at) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run")]
    {
        fs::create_dir_all(at).map_err(Error::file("making", at))?;
        let options = if kind == "tmpfs" { "mode=0755,nosuid,nodev" } else { "nosuid" };
        HostPrograms.must(&["mount", "-t", kind, "-o", options, kind, at])?;
    }
    // Shells use this path for pipes; the system's init creates it too.
    if !Path::new("/dev/fd").exists() {
        symlink("/proc/self/fd", "/dev/fd").map_err(Error::file("making", "/dev/fd"))?;
    }
    // Only some kernels have this driver built in, and only QEMU has the device.
    let _ = HostPrograms.run(&["modprobe", "-q", "qemu_fw_cfg"], &[]);
    Ok(())
}

/// Starts udev, which loads drivers and creates device links.
fn devices() -> Result<(), Error> {
    HostPrograms.must(&["/usr/lib/systemd/systemd-udevd", "--daemon", "--resolve-names=never"])?;
    for kind in ["subsystems", "devices"] {
        HostPrograms.must(&["udevadm", "trigger", "--action=add", &format!("--type={kind}")])?;
    }
    HostPrograms.must(&["udevadm", "settle", "--timeout=60"])?;
    Ok(())
}

/// Returns `true` if the kernel's random number generator is initialised. Until then readers block, possibly forever.
fn has_random_numbers() -> bool {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open("/dev/random");
    let read = file.and_then(|mut file| file.read(&mut [0]));
    read.is_ok_and(|length| length == 1)
}

fn mount_root(device: &str, format: &str, options: &str) -> Result<(), Error> {
    volumes::appear(device, &HostPrograms)?;
    fs::create_dir_all(SYSROOT).map_err(Error::file("making", SYSROOT))?;
    HostPrograms.must(&["mount", "-t", format, "-o", options, device, SYSROOT])?;
    Ok(())
}

/// Replaces this process by the system's init.
fn leave() -> Result<Infallible, Error> {
    // The old udev would hold devices, and the system starts its own.
    HostPrograms.must(&["udevadm", "control", "--exit"])?;
    for at in ["/proc", "/sys", "/dev", "/run"] {
        let to = format!("{SYSROOT}{at}");
        fs::create_dir_all(&to).map_err(Error::file("making", &to))?;
        HostPrograms.must(&["mount", "--move", at, &to])?;
    }
    let error = Command::new("/bin/busybox").args(["switch_root", SYSROOT, "/sbin/init"]).exec();
    Err(Error::file("giving way to", "/sbin/init")(error))
}
