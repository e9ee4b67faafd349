//! The life of a machine's first process.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    document::{self, Machine},
    error::Error,
    fleet::Fleet,
    space::{self, HOSTS, Space},
};

/// The directory of the fleet's programs inside a machine.
pub const PROGRAMS: &str = "/opt/windlass/programs";
/// The directory of a machine's document inside the machine: `machine.json`, `identity.crt` and `identity.key`.
pub const DOCUMENT: &str = "/opt/windlass/machine";
/// The directory inside a trusted machine with a copy of [`Fleet::trusted_files`] from the machine's creation.
pub const TRUSTED_FILES: &str = "/opt/windlass/machine/told";
/// The file with the user data inside a machine, which `nodeup` reads.
pub const USER_DATA: &str = "/opt/kops/conf/kube_env.yaml";
/// The directory of volumes inside a trusted machine without block devices, as in earlier versions.
pub const VOLUMES: &str = "/mnt/disks";
const RUNTIME: &str = "/etc/containerd/config.toml";

/// The directories that are on a machine's own disk.
const DISK: [&str; 9] = [
    "/etc/kubernetes",
    "/etc/containerd",
    "/etc/cni",
    "/opt",
    "/srv",
    "/var/lib/kube-proxy",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/log",
];
/// The directories that are an empty tmpfs in each machine.
const PRIVATE: [&str; 3] = ["/run", "/var/lib/cni", "/mnt"];

/// Creates a machine's namespaces and runs as its first process; the machine ends with it. Returns the exit code of the
/// machine's program. The calling process must have one thread.
pub fn hold(fleet: &Fleet, name: &str) -> Result<i32, Error> {
    space::make(&prepare(fleet, name)?)?;
    let program = format!("{PROGRAMS}/windlass");
    let mut command = Command::new(&program);
    command.args(["internal", "machine"]).current_dir("/");
    let child = command.spawn().map_err(|source| Error::Start { program, source })?;
    sys::attend(&child).map_err(|source| Error::Wait { machine: name.to_owned(), source })
}

fn prepare(fleet: &Fleet, name: &str) -> Result<Space, Error> {
    let root = fleet.machine_root(name);
    let machine = Machine::load(&document::path(&root))?;
    let spec = fleet.spec()?.unwrap_or_default();
    let disk = |path: &str| root.join("disk").join(path.trim_start_matches('/'));
    let mut bound: Vec<(PathBuf, PathBuf)> =
        DISK.iter().map(|path| (disk(path), PathBuf::from(path))).collect();
    bound.push((fleet.programs(), PROGRAMS.into()));
    bound.push((root.join("document"), DOCUMENT.into()));
    if machine.trusted && machine.volumes.is_empty() {
        bound.push((fleet.volumes(name), VOLUMES.into()));
    }
    for (from, _) in &bound {
        fs::create_dir_all(from).map_err(sys::Error::at("creating", from))?;
    }
    let outer = fs::read_to_string(HOSTS).unwrap_or_default();
    let hosts = root.join("disk/hosts");
    fs::write(&hosts, format!("{outer}\n{} {name}\n", machine.address))
        .map_err(sys::Error::at("writing", &hosts))?;
    bound.push((hosts, HOSTS.into()));
    // /etc/resolv.conf may be a link into a directory that becomes private.
    let resolvers = Path::new("/etc/resolv.conf");
    if let Ok(text) = fs::read(resolvers) {
        let own = root.join("disk/resolv.conf");
        fs::write(&own, text).map_err(sys::Error::at("writing", &own))?;
        if fs::canonicalize(resolvers).is_ok_and(|real| !real.starts_with("/run")) {
            bound.push((own, resolvers.into()));
        }
    }
    let mut hidden = vec![fleet.root.clone()];
    if !machine.trusted {
        hidden.extend(spec.secret);
    }
    Ok(Space {
        hostname: name.to_owned(),
        private: PRIVATE.map(PathBuf::from).into(),
        bound,
        read_only: vec![PROGRAMS.into()],
        hidden,
        kept: Vec::new(),
    })
}

const POLL: Duration = Duration::from_millis(20);
/// The longest run time that is logged.
const SETTLED: Duration = Duration::from_secs(30);

/// Runs inside a machine as its first process. Starts the container runtime once its configuration exists, and `nodeup`
/// until it succeeds once.
pub async fn run(tasks: &rt::Tasks) -> Result<(), Error> {
    let machine = Machine::load(&Path::new(DOCUMENT).join("machine.json"))?;
    if !space::wired() {
        return Err(Error::Disconnected { machine: machine.name });
    }
    let user_data = Path::new(USER_DATA);
    pki::write_file(user_data, machine.user_data.as_bytes(), pki::KEY_MODE)?;
    tasks.keep("runtime", || async {
        while !Path::new(RUNTIME).exists() {
            tokio::time::sleep(POLL).await;
        }
        let mut runtime = Command::new("containerd");
        runtime.args(["--config", RUNTIME]);
        run_program(runtime, "containerd").await;
    });
    let mut backoff = rt::Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    loop {
        let mut program = Command::new(format!("{PROGRAMS}/windlass"));
        program.arg("nodeup").arg("--conf").arg(USER_DATA);
        let ended = run_program(program, "nodeup");
        let Some(success) = tasks.shutdown().unless_stopping(ended).await else {
            return Ok(());
        };
        if success {
            break;
        }
        let pause = tokio::time::sleep(backoff.next(0.0));
        if tasks.shutdown().unless_stopping(pause).await.is_none() {
            return Ok(());
        }
    }
    tasks.shutdown().stopping().await;
    Ok(())
}

/// Runs a program with its output appended to its log, and waits for its end. Returns `true` if it succeeded.
async fn run_program(command: Command, name: &str) -> bool {
    match spawn(command, name) {
        Ok(mut child) => {
            let started = tokio::time::Instant::now();
            let status = child.wait().await;
            let outcome = status.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            tracing::info!(program = name, %outcome, after = ?started.elapsed().min(SETTLED), "the program ended");
            status.is_ok_and(|status| status.success())
        }
        Err(error) => {
            tracing::error!(%error, program = name, "cannot start the program");
            false
        }
    }
}

fn spawn(mut command: Command, name: &str) -> Result<tokio::process::Child, Error> {
    let path = PathBuf::from(format!("/var/log/{name}.log"));
    let open = || fs::OpenOptions::new().create(true).append(true).open(&path);
    let (out, err) = (
        open().map_err(sys::Error::at("opening the log", &path))?,
        open().map_err(sys::Error::at("opening the log", &path))?,
    );
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    tokio::process::Command::from(command)
        .spawn()
        .map_err(|source| Error::Start { program: name.to_owned(), source })
}
