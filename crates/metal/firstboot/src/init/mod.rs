//! The initrd's init process: mounts the root, runs Ignition and starts the system's init.
//!
//! The root is a tmpfs that the image is unpacked into, or an installed disk. With `windlass.install` a disk is
//! installed and the machine reboots. Read [`run`] first.

mod archive;
mod install;
mod layout;
mod network;
mod sysroot;
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

use sys::{HostPrograms, Programs};
use tokio::time::Instant;

use self::sysroot::SYSROOT;
use crate::{
    cmd::run_stage,
    cmdline::{self, Plan, RootLocation},
    error::Error,
    report::{self, Outcome},
};

const CONFIG: &str = "/run/ignition.json";
const NEED_NETWORK: &str = "/run/ignition/neednet";

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
    if !progress.is_reported.get() {
        report_event(progress.stage.get(), Outcome::Failed, &error.to_string());
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
    /// `true` if the stage has reported its failure to the server.
    is_reported: Cell<bool>,
}

impl Progress {
    fn new() -> Self {
        Self { started: Instant::now(), stage: Cell::new("fetch"), is_reported: Cell::new(false) }
    }

    fn step(&self, what: &str) {
        eprintln!("[{:6.2}] init: {what}", self.started.elapsed().as_secs_f64());
    }

    fn stage(&self, name: &'static str, platform: &str) -> Result<(), Error> {
        self.step(&format!("Ignition: {name}"));
        self.stage.set(name);
        let result = run_stage(&["--platform", platform, "--root", SYSROOT, "--stage", name]);
        self.is_reported.set(result.is_err());
        result
    }
}

/// Reports an event that is not a stage of Ignition.
fn report_event(stage: &str, outcome: Outcome, text: &str) {
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
    step(&format!("{:?}", plan.root));
    devices()?;
    step("devices are ready");
    if !has_random_numbers() {
        step(
            "waiting for random numbers: the machine has no hardware source such as RDRAND or virtio-rng",
        );
    }
    if plan.ignite {
        ignite(&plan, &line, progress)?;
    } else if let RootLocation::Disk(root) = &plan.root {
        volumes::open(&line, &HostPrograms, &step)?;
        sysroot::mount(&cmdline::device(root), "auto", "rw")?;
    }
    if let RootLocation::Install(disk) = &plan.root {
        install::finish(disk)?;
        step("installed; booting again");
        report_event("installed", Outcome::Succeeded, "");
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
    if let RootLocation::Install(disk) = &plan.root {
        install::lay_out(disk, Path::new(CONFIG))?;
    }
    stage("kargs")?;
    stage("disks")?;
    match &plan.root {
        RootLocation::Memory => sysroot::mount_memory()?,
        RootLocation::Disk(root) => sysroot::mount(&cmdline::device(root), "auto", "rw")?,
        RootLocation::Install(_) => {
            let (device, format) = install::root(&layout::read_typed(Path::new(CONFIG))?)?;
            sysroot::mount(&device, &format, "rw")?;
        }
    }
    stage("mount")?;
    if !matches!(plan.root, RootLocation::Disk(_)) {
        let count = sysroot::unpack()?;
        step(&format!("{count} files of the root are unpacked"));
    }
    stage("files")?;
    if matches!(plan.root, RootLocation::Install(_)) {
        install::boot_loader(line, &layout::read_typed(Path::new(CONFIG))?)?;
        step("the boot loader is in place");
    }
    stage("umount")
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
