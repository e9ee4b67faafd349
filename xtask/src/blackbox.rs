//! `cargo xtask blackbox`: runs upstream's black-box tests of Ignition on our binary, in a virtual machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use crate::{
    build::{self, Profile},
    error::{Cause, During, Result},
    file::{create_directory, list, read},
    machine,
    run::{output, pass, program, step, target_directory},
};

const USAGE: &str = "usage: cargo xtask blackbox DIR [--tree ROOT] [--short] [--run PATTERN] [--resume]

  DIR has the output of upstream's `build_blackbox_tests`: `tests.test` and the stubs of useradd and similar tools.

  --tree ROOT     a Debian system with a kernel, udev and the tools of Ignition's stages [default: a new one]
  --short         each case only with the oldest config version that it supports, instead of with every version
  --run PATTERN   only the cases whose names match, like `go test -run`
  --resume        skip the cases that passed in an earlier run, also in an interrupted one

Verdicts are appended to target/blackbox/verdicts during the run.

The environment variable WINDLASS is the path of a binary to use instead of a new build.";

/// The packages of the guest.
const PACKAGES: &str = "linux-image-cloud-amd64,systemd,udev,kmod,e2fsprogs,btrfs-progs,xfsprogs,dosfstools,gdisk,\
                        mdadm,cryptsetup-bin,dmsetup,fdisk,mount,iproute2,procps,passwd,clevis-luks,clevis-tpm2";

const TPM_SOCKET: &str = "tpm.socket";

/// The guest's first process: it mounts file systems, loads modules, creates devices, runs the tests and powers off.
/// With events as output, each verdict appears when its case ends, instead of at the end.
const INIT: &str = r#"#!/bin/bash
export PATH=/mnt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
# The day on which the tests have users made.
export SOURCE_DATE_EPOCH=1497398400
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
ln -sf /proc/self/fd /dev/fd
mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; mkdir -p /run/lock /run/lib64
mount -t tmpfs -o size=3g tests /var/tmp
ip link set lo up
for module in loop dm-mod dm-crypt md-mod raid0 raid1 btrfs xfs vfat nls_cp437 nls_ascii nls_utf8; do modprobe $module; done
# The tests copy a library from where other distributions have it.
cp -a /lib64/* /run/lib64/; cp /lib/x86_64-linux-gnu/libnss_files.so.2 /run/lib64/; mount --bind /run/lib64 /lib64
/lib/systemd/systemd-udevd --daemon
udevadm trigger; udevadm settle
cd /mnt
./tests.test -test.v=test2json -test.timeout 10h -test.parallel 1 $(cat arguments) 2>&1
echo "tests ended: $?"
echo o > /proc/sysrq-trigger; sleep 60
"#;

struct Options {
    tests: PathBuf,
    tree: Option<PathBuf>,
    arguments: String,
    resume: bool,
}

fn options(args: &[String]) -> Result<Options> {
    let (mut tests, mut tree, mut arguments, mut resume) = (None, None, String::new(), false);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--tree" => tree = Some(PathBuf::from(rest.next().ok_or(USAGE)?)),
            "--resume" => resume = true,
            "--short" => arguments.push_str(" -test.short"),
            "--run" => {
                arguments.push_str(" -test.run ");
                arguments.push_str(rest.next().ok_or(USAGE)?);
            }
            arg if !arg.starts_with('-') && tests.is_none() => tests = Some(PathBuf::from(arg)),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(Options { tests: tests.ok_or(USAGE)?, tree, arguments, resume })
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut options = options(args)?;
    step("prepare the machine", || {
        machine::install(&[
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("mke2fs", "e2fsprogs"),
            ("mmdebstrap", "mmdebstrap"),
            ("swtpm", "swtpm"),
        ])
    })?;
    let binary = build::given_or_built(Profile::Quick)?;
    let directory = target_directory().join("blackbox");
    create_directory(&directory)?;
    let tree = match &options.tree {
        Some(tree) => tree.clone(),
        None => step("a Debian system", || debian(&directory))?,
    };
    let kernel = kernel(&tree)?;
    let verdicts = Verdicts::open(&directory.join("verdicts"), options.resume)?;
    options.arguments.push_str(&verdicts.skipped());
    let disks = step("the guest's disks", || {
        let work = work(&directory, &options, &binary)?;
        Ok([disk(&directory, "system", &tree, "2G")?, disk(&directory, "work", &work, "1G")?])
    })?;
    let log = directory.join("log");
    let report = step("the tests", || {
        let mut chip = chip(&directory)?;
        let report =
            start(&kernel, &disks, &directory).and_then(|guest| watch(guest, &log, verdicts));
        // swtpm normally ends with its guest.
        let _ = chip.kill();
        let _ = chip.wait();
        report
    })?;
    println!("{report}");
    for name in &report.failed {
        println!("failed: {name}");
    }
    println!("their output is in {}", log.display());
    if report.failed.is_empty() && report.ended { Ok(()) } else { Err("not all passed".into()) }
}

fn debian(directory: &Path) -> Result<PathBuf> {
    let tree = directory.join("tree");
    if !tree.join("boot").is_dir() {
        let include = format!("--include={PACKAGES}");
        let args = ["--variant=minbase", "--quiet", &include, "bookworm"];
        pass(program("mmdebstrap", args).arg(&tree))?;
    }
    Ok(tree)
}

fn kernel(tree: &Path) -> Result<PathBuf> {
    let boot = tree.join("boot");
    list(&boot)?
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-")))
        .ok_or_else(|| format!("{} has no kernel; name another --tree", boot.display()).into())
}

/// Creates the directory that the guest mounts as `/mnt`.
fn work(directory: &Path, options: &Options, binary: &Path) -> Result<PathBuf> {
    let work = directory.join("work");
    fill(&work, options, binary).during("preparing", work.display())?;
    Ok(work)
}

fn fill(work: &Path, options: &Options, binary: &Path) -> Result<(), Cause> {
    if work.exists() {
        fs::remove_dir_all(work)?;
    }
    let bin = work.join("bin");
    fs::create_dir_all(&bin)?;
    copy(&options.tests.join("tests.test"), &work.join("tests.test"))?;
    for entry in fs::read_dir(&options.tests)?.flatten() {
        if entry.file_name().to_string_lossy().ends_with("-stub") {
            copy(&entry.path(), &bin.join(entry.file_name()))?;
        }
    }
    copy(binary, &bin.join("windlass"))?;
    symlink("windlass", bin.join("ignition"))?;
    let scripts = [("init", INIT), ("bin/sudo", "#!/bin/sh\nexec \"$@\"\n")];
    for (name, text) in scripts {
        fs::write(work.join(name), text)?;
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(0o755))?;
    }
    Ok(fs::write(work.join("arguments"), &options.arguments)?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).during("copying", from.display()).map(drop)
}

/// Creates a disk image with the contents of a directory.
fn disk(directory: &Path, name: &str, from: &Path, size: &str) -> Result<PathBuf> {
    let path = directory.join(format!("{name}.ext4"));
    let _ = fs::remove_file(&path);
    output(program("mke2fs", ["-q", "-t", "ext4", "-d"]).arg(from).arg(&path).arg(size))?;
    Ok(path)
}

/// Creates a new TPM, for volumes that are bound to one.
fn chip(directory: &Path) -> Result<Child> {
    let (socket, state) = (directory.join(TPM_SOCKET), directory.join("tpm"));
    if state.exists() {
        fs::remove_dir_all(&state).during("removing", state.display())?;
    }
    create_directory(&state)?;
    let _ = fs::remove_file(&socket);
    let mut command = program("swtpm", ["socket", "--tpm2", "--tpmstate"]);
    command.arg(format!("dir={}", state.display()));
    command.arg("--ctrl").arg(format!("type=unixio,path={}", socket.display()));
    let chip = command.stdin(Stdio::null()).spawn().during("starting", "swtpm")?;
    for _ in 0..500 {
        if socket.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(chip)
}

/// Starts the guest without hardware acceleration, because the host may have none. The guest's clock counts
/// instructions: each case has a timeout of a minute, and a slow host must not cause failures. Features that are slow
/// to emulate are disabled: address randomization (each program start would be translated again), byte-wise string
/// instructions, and mitigations against other users of a processor.
fn start(kernel: &Path, disks: &[PathBuf; 2], directory: &Path) -> Result<Child> {
    let append = "root=/dev/nvme0n1 ro console=ttyS0 quiet panic=-1 norandmaps mitigations=off init_on_alloc=0 \
                  no5lvl apparmor=0 audit=0 clearcpuid=rep_good init=/bin/bash -- -c \
                  \"mount -t devtmpfs dev /dev; mount -t ext4 /dev/nvme1n1 /mnt; exec /mnt/init\"";
    let mut guest = program("qemu-system-x86_64", ["-accel", "tcg", "-cpu", "max,-erms,-fsrm"]);
    guest.args([
        "-icount",
        "shift=0,sleep=off",
        "-M",
        "q35",
        "-m",
        "5120",
        "-nodefaults",
        "-display",
        "none",
    ]);
    guest.args(["-no-reboot", "-device", "virtio-rng-pci", "-serial", "stdio"]);
    guest.arg("-kernel").arg(kernel).args(["-append", append]);
    for (n, disk) in disks.iter().enumerate() {
        let drive = format!("if=none,id=d{n},format=raw,snapshot=on,file={}", disk.display());
        guest.args(["-drive", &drive, "-device", &format!("nvme,drive=d{n},serial=d{n}")]);
    }
    let socket = format!("socket,id=tpm,path={}", directory.join(TPM_SOCKET).display());
    guest.args(["-chardev", &socket, "-tpmdev", "emulator,id=tpm,chardev=tpm"]);
    guest.args(["-device", "tpm-tis,tpmdev=tpm"]);
    guest.stdin(Stdio::null()).stdout(Stdio::piped());
    guest.spawn().during("starting", "qemu-system-x86_64")
}

/// The results of the cases, including those of the resumed runs.
#[derive(Debug, Default, PartialEq)]
struct Report {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    skipped: usize,
    /// The cases that started and have no verdict yet.
    waiting: BTreeSet<String>,
    /// `true` if the tests ran to their end.
    ended: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.failed.len());
        write!(f, "{passed} passed, {failed} failed, {} not run", self.skipped + self.waiting.len())
    }
}

impl Report {
    /// Processes a line of the tests' output. Returns the case and its verdict if the line has one. Only cases count,
    /// not the functions that contain them.
    fn line<'l>(&mut self, line: &'l str) -> Option<(&'l str, &'l str)> {
        let line = line.trim_start_matches(['\u{16}', ' ']);
        if line.starts_with("tests ended:") {
            self.ended = true;
        }
        if let Some(name) = line.strip_prefix("=== RUN ").map(str::trim) {
            if name.contains('/') {
                self.waiting.insert(name.to_owned());
            }
            return None;
        }
        let (verdict, name) = line.strip_prefix("--- ")?.split_once(": ")?;
        let name = name.split(' ').next().filter(|name| name.contains('/'))?;
        self.waiting.remove(name);
        match verdict {
            "PASS" => {
                self.failed.remove(name);
                self.passed.insert(name.to_owned())
            }
            "FAIL" => self.failed.insert(name.to_owned()),
            _ => {
                self.skipped += 1;
                return None;
            }
        };
        Some((name, verdict))
    }
}

/// The stored verdicts of a run.
struct Verdicts {
    path: PathBuf,
    file: File,
    passed: BTreeSet<String>,
}

impl Verdicts {
    fn open(path: &Path, resume: bool) -> Result<Self> {
        let mut passed = BTreeSet::new();
        if resume && path.exists() {
            let text = read(path)?;
            let names = text.lines().filter_map(|line| line.strip_suffix(" PASS"));
            passed.extend(names.map(str::to_owned));
        }
        let open = || {
            let file = File::options().create(true).append(true).open(path)?;
            if !resume {
                file.set_len(0)?;
            }
            Ok::<_, io::Error>(file)
        };
        let file = open().during("opening", path.display())?;
        Ok(Self { path: path.into(), file, passed })
    }

    /// Returns the arguments that skip the passed cases.
    fn skipped(&self) -> String {
        let mut functions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (function, case) in self.passed.iter().filter_map(|name| name.split_once('/')) {
            functions.entry(function).or_default().push(case.replace('.', "\\."));
        }
        let patterns: Vec<String> = functions
            .iter()
            .map(|(function, cases)| format!("^{function}$/^({})$", cases.join("|")))
            .collect();
        if patterns.is_empty() {
            String::new()
        } else {
            format!(" -test.skip {}", patterns.join("|"))
        }
    }

    fn keep(&mut self, name: &str, verdict: &str) -> Result<()> {
        writeln!(self.file, "{name} {verdict}").during("writing", self.path.display())
    }
}

fn watch(mut guest: Child, log: &Path, mut verdicts: Verdicts) -> Result<Report> {
    let mut copy = File::create(log).during("creating", log.display())?;
    let mut report = Report { passed: verdicts.passed.clone(), ..Report::default() };
    let console = guest.stdout.take().ok_or("the guest has no console")?;
    for line in BufReader::new(console).split(b'\n') {
        let line = line.during("reading", "the guest's console")?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        writeln!(copy, "{line}").during("writing", log.display())?;
        let Some((name, verdict)) = report.line(line) else { continue };
        verdicts.keep(name, verdict)?;
        if (report.passed.len() + report.failed.len()).is_multiple_of(50) {
            eprintln!("    {report}");
        }
    }
    guest.wait().during("waiting for", "the guest")?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn counts_verdicts_of_cases() {
        let mut report = Report::default();
        for line in [
            "\u{16}=== RUN   TestIgnitionBlackBox",
            "\u{16}=== RUN   TestIgnitionBlackBox/a",
            "=== RUN   TestIgnitionBlackBox/b.c",
            "\u{16}=== RUN   TestIgnitionBlackBox/e",
            "\u{16}--- FAIL: TestIgnitionBlackBox (12.00s)",
            "\u{16}    --- PASS: TestIgnitionBlackBox/a (1.00s)",
            "    --- FAIL: TestIgnitionBlackBox/b.c (1.00s)",
            "    --- SKIP: TestIgnitionBlackBoxNegative/d (0.00s)",
            "tests ended: 1",
        ] {
            report.line(line);
        }
        let want = Report {
            passed: names(["TestIgnitionBlackBox/a"]),
            failed: names(["TestIgnitionBlackBox/b.c"]),
            skipped: 1,
            waiting: names(["TestIgnitionBlackBox/e"]),
            ended: true,
        };
        assert_eq!(report, want);
        assert_eq!(report.to_string(), "1 passed, 1 failed, 2 not run");
    }

    #[test]
    fn skips_passed_cases_in_resumed_run() {
        let path = std::env::temp_dir().join(format!("verdicts-{}", std::process::id()));
        let mut first = Verdicts::open(&path, false).unwrap();
        for (name, verdict) in [("A/a.b_3.0.0", "PASS"), ("A/c", "FAIL"), ("B/d", "PASS")] {
            first.keep(name, verdict).unwrap();
        }
        let next = Verdicts::open(&path, true).unwrap();
        assert_eq!(next.skipped(), r" -test.skip ^A$/^(a\.b_3\.0\.0)$|^B$/^(d)$");
        let anew = Verdicts::open(&path, false).unwrap();
        assert_eq!(anew.skipped(), "");
        fs::remove_file(path).unwrap();
    }
}
