//! Two network namespaces with a link between them: this one for the servers, the other for the machines.

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::Ipv4Addr,
    os::fd::AsFd,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::machine::{Machine, Relay};

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The content of the boot loader.
pub(crate) const LOADER: usize = 90_000;
pub(crate) type Assets = [(&'static str, usize); 2];

/// Returns a kernel and an initrd of a size so that all machines together fetch `total` bytes.
fn assets(machines: u32, total: u64) -> Assets {
    let fifth = usize::try_from(total / u64::from(machines) / 5).unwrap();
    [("vmlinuz", fifth), ("initrd", 4 * fifth)]
}

const INSIDE: &str = "NETBOOT_BENCH_NAMESPACE";

/// Runs the benchmark again in a network namespace and returns its exit code; `None` in that run.
pub(crate) fn enter() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let this = std::env::current_exe().unwrap();
    let status = Command::new("unshare").arg("--net").arg("--").arg(this).env(INSIDE, "1").status();
    Some(if status.unwrap().success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

pub(crate) struct World {
    dir: tempfile::TempDir,
    holder: Child,
    machines: u32,
    assets: Assets,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        // The kernel removes the link with the other namespace, which takes a while.
        let _ = Command::new("ip").args(["link", "del", "s0"]).stderr(Stdio::null()).status();
    }
}

impl World {
    pub(crate) fn new(machines: u32, total: u64) -> Self {
        let mut holder = Command::new("unshare");
        let holder = holder.args(["--net", "sleep", "3600"]).stdout(Stdio::null()).spawn().unwrap();
        let there = format!("nsenter --net=/proc/{}/ns/net", holder.id());
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        while fs::read_link(format!("/proc/{}/ns/net", holder.id())).is_ok_and(|other| other == own)
        {
            thread::sleep(Duration::from_millis(5));
        }
        let dir = tempfile::tempdir().unwrap();
        // Routed through the relay, because the kernel's neighbour table has at most 1,024 entries.
        let world = Self { dir, holder, machines, assets: assets(machines, total) };
        shell(&format!(
            "ip link set lo up && ip link add s0 type veth peer name eth0 && ip addr add {SERVER}/24 dev s0 && \
             ip link set s0 up && ip link set eth0 netns {} && {there} ip link set eth0 up && \
             ip route add 10.77.0.0/16 via {RELAY}",
            world.holder.id()
        ));
        // The addresses exist from the start, because adding one is faster than running a client's script.
        let mut batch = format!("addr add {RELAY}/16 dev eth0\n");
        for n in 0..machines {
            batch.push_str(&format!("addr add {}/16 dev eth0\n", nth(n)));
        }
        fs::write(world.path("batch"), batch).unwrap();
        shell(&format!("{there} ip -batch {}", world.path("batch").display()));
        world.store();
        world
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn store(&self) {
        let noise =
            |length: usize| -> Vec<u8> { (0..length).map(|i| (i * i % 251) as u8).collect() };
        self.put("tftp/undionly.kpxe", noise(LOADER));
        for (name, length) in self.assets {
            self.put(&format!("assets/{name}"), noise(length));
        }
        self.put(
            "groups/all.json",
            r#"{"id":"all","profile":"p","metadata":{"domain":"example.test"}}"#,
        );
        self.put(
            "profiles/p.json",
            r#"{"id":"p","ignition_id":"node.yaml","boot":{"kernel":"/assets/vmlinuz","initrd":["/assets/initrd"],
            "args":["ignition.config.url=http://10.77.0.1:8080/ignition?mac=${mac:hexhyp}&nonce={{.request.nonce}}"]}}"#,
        );
        self.put(
            "ignition/node.yaml",
            "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /etc/hostname\n      contents:\n        \
             inline: \"{{.request.query.mac}}.{{.domain}}\"\n",
        );
    }

    pub(crate) fn windlass(&self, binary: &OsStr) -> Server {
        let dir = self.dir.path().display();
        let args = format!(
            "metal serve --address {SERVER}:8080 --data-path {dir} --assets-path {dir}/assets --tftp-root {dir}/tftp \
             --interface s0 --dhcp-range {},{},255.255.0.0,1h --no-ping --no-dns --dhcp-leasefile {dir}/leases \
             --machines-file {dir}/machines --log-level error",
            nth(0),
            nth(self.machines - 1)
        );
        self.start(binary, &args)
    }

    /// Starts dnsmasq; `None` if it is not installed.
    pub(crate) fn dnsmasq(&self) -> Option<Server> {
        Command::new("dnsmasq").arg("--version").stdout(Stdio::null()).status().ok()?;
        let dir = self.dir.path().display();
        let args = format!(
            "--keep-in-foreground --conf-file=/dev/null --port=0 --interface=s0 --bind-interfaces --no-ping --user=root \
             --dhcp-range={},{},255.255.0.0,1h --dhcp-leasefile={dir}/peer.leases --dhcp-boot=undionly.kpxe --quiet-dhcp \
             --dhcp-lease-max=2000 --enable-tftp --tftp-root={dir}/tftp --tftp-max=1000 --quiet-tftp \
             --pid-file={dir}/peer.pid",
            nth(0),
            nth(self.machines - 1)
        );
        Some(self.start(OsStr::new("dnsmasq"), &args))
    }

    fn start(&self, program: &OsStr, args: &str) -> Server {
        let log = File::create(self.path("log")).unwrap();
        let mut command = Command::new(program);
        command.args(args.split_whitespace()).stdout(Stdio::null()).stderr(log);
        let mut server = Server { process: command.spawn().unwrap() };
        let deadline = Instant::now() + Duration::from_secs(20);
        // Both servers open the TFTP port after or together with the DHCP port.
        while !listens(67) || !listens(69) {
            let ended = server.process.try_wait().unwrap();
            let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < deadline, "{}", log());
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Boots all machines at once from the other namespace.
    pub(crate) fn boot(&self, whole: bool) -> Vec<Machine> {
        let assets = self.assets;
        let machines = (0..self.machines).map(move |n| Machine::new(n, whole.then_some(assets)));
        let namespace = Arc::new(File::open(format!("/proc/{}/ns/net", self.holder.id())).unwrap());
        let enter = move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        };
        // One thread for the machines, whose work is not measured, and one for the relay.
        thread::spawn(move || {
            enter();
            let socket = std::net::UdpSocket::bind((RELAY, 67)).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20).unwrap();
            let relay = Relay::new(socket).unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    rustix::process::setpriority_process(None, -19).unwrap();
                    relay.run();
                });
                let all = machines.map(|machine| machine.boot(&relay));
                let done = runtime.block_on(futures_util::future::join_all(all));
                relay.done.store(true, Ordering::Relaxed);
                done
            })
        })
        .join()
        .unwrap()
    }
}

/// Returns the address of the n-th machine.
fn nth(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 1, 0)) + n)
}

/// Returns `true` if a socket in this namespace has this UDP port.
fn listens(port: u16) -> bool {
    let table = fs::read_to_string("/proc/self/net/udp").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .any(|local| local.ends_with(&format!(":{port:04X}")))
}

pub(crate) struct Server {
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The memory of a process: its proportional set size in kilobytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) all: u64,
    /// The size without the pages of the program file, which are loaded on first use.
    pub(crate) own: u64,
}

fn memory(process: u32) -> Memory {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(Path::new(&path)).unwrap_or_default();
    let value = |name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    };
    Memory { all: value("Pss:"), own: value("Pss_Anon:") }
}

impl Server {
    pub(crate) fn memory(&self) -> Memory {
        memory(self.process.id())
    }

    pub(crate) fn processor(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The process name in brackets may contain spaces.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Samples the memory ten times a second.
    pub(crate) fn sample(&self) -> Sampler {
        let (id, stop) = (self.process.id(), Arc::new(AtomicBool::new(false)));
        let until = stop.clone();
        let thread = thread::spawn(move || {
            let mut most = Memory::default();
            while !until.load(Ordering::Relaxed) {
                let now = memory(id);
                most = Memory { all: most.all.max(now.all), own: most.own.max(now.own) };
                thread::sleep(Duration::from_millis(100));
            }
            most
        });
        Sampler { stop, thread }
    }
}

pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Memory>,
}

impl Sampler {
    /// Stops and returns the maximum.
    pub(crate) fn stop(self) -> Memory {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
