//! Tests with a fake logind on a real bus. They need the program `dbus-daemon`.

use std::{
    fs,
    io::{IoSlice, Read as _},
    mem::MaybeUninit,
    os::fd::AsFd as _,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use super::{
    bus::{Bus, Method},
    message::{Body, Header, Kind, Message},
    *,
};

/// A message bus of its own.
struct Daemon {
    process: Child,
    dir: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, config) = (dir.path().join("bus"), dir.path().join("bus.conf"));
        let text = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            socket.display()
        );
        fs::write(&config, text).unwrap();
        let process = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .arg("--nofork")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let listens = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
        let patience = Duration::from_secs(10);
        assert!(rt::wait_until(patience, Duration::from_millis(10), listens).await);
        Self { process, dir }
    }

    fn paths(&self) -> Paths {
        Paths { bus: self.dir.path().join("bus"), settings: self.settings() }
    }

    fn settings(&self) -> PathBuf {
        self.dir.path().join("logind.conf.d")
    }
}

/// A fake of logind, and of the part of systemd that sends signals to it.
struct FakeLogind {
    bus: Bus,
    delay: Duration,
    /// The delay that its settings file would set.
    reloaded: Duration,
    /// The other ends of the locks that were given away.
    locks: Vec<UnixStream>,
}

impl FakeLogind {
    async fn start(bus: &Path, delay: Duration, reloaded: Duration) -> Self {
        let mut bus = Bus::connect(bus).await.unwrap();
        for name in ["org.freedesktop.login1", "org.freedesktop.systemd1"] {
            let request = Body::texts(&[name]).word('u', [0; 4]);
            bus.call(Method::of_bus("RequestName"), request).await.unwrap();
        }
        Self { bus, delay, reloaded, locks: Vec::new() }
    }

    /// Answers calls until a lock is taken.
    async fn until_inhibited(&mut self) {
        loop {
            let call = self.bus.receive().await.unwrap();
            if call.header.kind == Kind::Call && self.answer(&call).await {
                return;
            }
        }
    }

    /// Answers a call. Returns `true` if it took a lock.
    async fn answer(&mut self, call: &Message) -> bool {
        let reply = Header {
            reply_to: call.header.serial,
            destination: call.header.sender.clone(),
            ..Header::new(Kind::Return)
        };
        match call.header.member.as_str() {
            "Get" => {
                assert_eq!(call.texts().nth(1), Some("InhibitDelayMaxUSec"));
                let delay = self.delay.as_micros() as u64;
                let body = Body::default().variant(delay);
                self.bus.send(reply, body).await.unwrap();
            }
            "KillUnit" => {
                assert_eq!(call.texts().collect::<Vec<_>>(), ["systemd-logind.service", "all"]);
                self.delay = self.reloaded;
                self.bus.send(reply, Body::default()).await.unwrap();
            }
            "Inhibit" => {
                let words: Vec<&str> = call.texts().collect();
                assert_eq!((words[0], words[1], words[3]), ("shutdown", "kubelet", "delay"));
                let (own, given) = UnixStream::pair().unwrap();
                own.set_nonblocking(true).unwrap();
                self.locks.push(own);
                let reply = Header { descriptors: 1, ..reply };
                let bytes = reply.encode(1000, &Body::default().word('h', [0; 4]));
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let given = [given.as_fd()];
                assert!(control.push(SendAncillaryMessage::ScmRights(&given)));
                let stream = self.bus.stream();
                let sent =
                    sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty());
                assert_eq!(sent.unwrap(), bytes.len());
                return true;
            }
            other => panic!("{other} was called"),
        }
        false
    }

    async fn signal(&mut self, begins: bool) {
        send_signal(&mut self.bus, "", begins).await;
    }

    /// Reports whether the lock that was taken last is still held.
    fn is_locked(&self) -> bool {
        let mut lock = self.locks.last().unwrap();
        lock.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// Sends the signal of a shutdown to one connection, or to all if `destination` is empty.
async fn send_signal(bus: &mut Bus, destination: &str, begins: bool) {
    let header = Header {
        path: "/org/freedesktop/login1".to_owned(),
        interface: "org.freedesktop.login1.Manager".to_owned(),
        member: "PrepareForShutdown".to_owned(),
        destination: destination.to_owned(),
        ..Header::new(Kind::Signal)
    };
    let body = Body::default().word('b', [u8::from(begins), 0, 0, 0]);
    bus.send(header, body).await.unwrap();
}

/// A node whose Pods end when the test says so.
#[derive(Default)]
struct FakeNode {
    pods: Vec<Arc<Pod>>,
    ended: Mutex<Vec<(String, Ending, Duration)>>,
    torn_down: watch::Sender<bool>,
    shutting_down: watch::Sender<Option<bool>>,
}

impl Node for FakeNode {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.clone()
    }

    fn end(&self, pod: &Pod, ending: Ending, grace: Duration) -> Option<watch::Receiver<bool>> {
        let name = pod.metadata.name.clone().unwrap();
        self.ended.lock().push((name, ending, grace));
        Some(self.torn_down.subscribe())
    }

    fn set_shutting_down(&self, begins: bool) {
        self.shutting_down.send_replace(Some(begins));
    }
}

fn pod(name: &str, priority: i32) -> Arc<Pod> {
    let pod =
        json!({ "metadata": { "name": name }, "spec": { "priority": priority, "containers": [] } });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn periods(periods: &[(i32, u64)]) -> Vec<ShutdownPeriod> {
    let period = |(priority, seconds): &(i32, u64)| ShutdownPeriod {
        priority: *priority,
        grace: Duration::from_secs(*seconds),
    };
    periods.iter().map(period).collect()
}

#[tokio::test]
async fn holds_shutdown_until_pods_have_ended() {
    let daemon = Daemon::start().await;
    let seconds = Duration::from_secs;
    let mut logind = FakeLogind::start(&daemon.paths().bus, seconds(5), seconds(50)).await;
    let node = FakeNode { pods: vec![pod("app", 0)], ..FakeNode::default() };
    let (paths, periods) = (daemon.paths(), periods(&[(0, 30), (2_000_000_000, 20)]));
    let mut state = node.shutting_down.subscribe();
    let test = async {
        logind.until_inhibited().await;
        let setting = fs::read_to_string(daemon.settings().join("99-kubelet.conf")).unwrap();
        assert!(setting.ends_with("[Login]\nInhibitDelayMaxSec=50\n"), "{setting}");
        assert!(logind.is_locked());
        logind.signal(true).await;
        state.wait_for(|state| *state == Some(true)).await.unwrap();
        let patience = || (Duration::from_secs(10), Duration::from_millis(10));
        let (long, pause) = patience();
        assert!(rt::wait_until(long, pause, || !node.ended.lock().is_empty()).await);
        assert!(logind.is_locked(), "the machine may shut down while a Pod ends");
        node.torn_down.send_replace(true);
        assert!(rt::wait_until(long, pause, || !logind.is_locked()).await);
        // The shutdown is cancelled, and the next one is delayed again.
        logind.signal(false).await;
        logind.until_inhibited().await;
        assert_eq!(*state.borrow_and_update(), Some(false));
        assert!(logind.is_locked());
    };
    tokio::select! {
        ended = follow(&node, &periods, &paths) => panic!("{ended:?}"),
        () = test => {}
    }
    let ended = node.ended.lock().remove(0);
    assert_eq!((ended.0.as_str(), ended.2), ("app", Duration::from_secs(30)));
    assert_eq!(ended.1.reason.as_deref(), Some("Terminated"));
}

#[tokio::test]
async fn ignores_signals_of_others_and_follows_restarted_logind() {
    let daemon = Daemon::start().await;
    let (bus, delay) = (daemon.paths().bus, Duration::from_secs(50));
    let mut logind = FakeLogind::start(&bus, delay, delay).await;
    let node = FakeNode { pods: vec![pod("app", 0)], ..FakeNode::default() };
    let (paths, periods) = (daemon.paths(), periods(&[(0, 30)]));
    let mut state = node.shutting_down.subscribe();
    let test = async {
        // The kubelet is the caller that takes the lock.
        let kubelet = loop {
            let call = logind.bus.receive().await.unwrap();
            if call.header.kind == Kind::Call && logind.answer(&call).await {
                break call.header.sender;
            }
        };
        let mut stranger = Bus::connect(&bus).await.unwrap();
        for _ in 0..100 {
            send_signal(&mut stranger, &kubelet, true).await;
        }
        send_signal(&mut stranger, "", true).await;
        // A call after the signals shows that the bus has passed them on.
        stranger.call(Method::of_bus("GetId"), Body::default()).await.unwrap();
        // The stranger's signals came before that of the next logind.
        drop(logind);
        let mut next = FakeLogind::start(&bus, delay, delay).await;
        next.signal(false).await;
        next.until_inhibited().await;
        assert_eq!(*state.borrow_and_update(), Some(false));
    };
    tokio::select! {
        ended = follow(&node, &periods, &paths) => panic!("{ended:?}"),
        () = test => {}
    }
    assert!(node.ended.lock().is_empty(), "a stranger ended the node's Pods");
}

#[tokio::test]
async fn reports_missing_bus_and_logind_that_does_not_wait() {
    let daemon = Daemon::start().await;
    let node = FakeNode::default();
    let periods = periods(&[(0, 30)]);
    let absent = Paths { bus: daemon.dir.path().join("none"), ..daemon.paths() };
    let error = follow(&node, &periods, &absent).await.unwrap_err().to_string();
    assert!(error.contains("connect to the system bus"), "{error}");
    let paths = daemon.paths();
    let error = follow(&node, &periods, &paths).await.unwrap_err().to_string();
    assert!(error.starts_with("Get: org.freedesktop.DBus.Error."), "{error}");
    let short = Duration::from_secs(5);
    let mut logind = FakeLogind::start(&paths.bus, short, short).await;
    tokio::select! {
        ended = follow(&node, &periods, &paths) => {
            let error = ended.unwrap_err().to_string();
            assert!(error.contains("unable to update logind InhibitDelayMaxSec to 30s"), "{error}");
        }
        () = logind.until_inhibited() => panic!("a lock was taken that does not last"),
    }
}

#[tokio::test]
async fn rejects_peer_that_is_no_bus() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &[b'x'; 10_000]).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        bus = Bus::connect(&path) => {
            let error = bus.err().unwrap().to_string();
            assert!(error.contains("authenticate to the system bus"), "{error}");
        }
        () = serve => {}
    }
}

#[tokio::test(start_paused = true)]
async fn ends_groups_by_rising_priority_each_within_its_period() {
    let pods =
        vec![pod("critical", 2_000_000_000), pod("high", 1500), pod("low", -5), pod("app", 0)];
    let node = FakeNode { pods, ..FakeNode::default() };
    let begin = Instant::now();
    end_pods(&node, &periods(&[(0, 10), (1000, 20), (10_000, 40), (2_000_000_000, 5)])).await;
    // No Pod ended in time, and no Pod has a priority of 10,000.
    assert_eq!(begin.elapsed(), Duration::from_secs(35));
    let ended = node.ended.lock();
    let names: Vec<(&str, u64)> =
        ended.iter().map(|(name, _, grace)| (name.as_str(), grace.as_secs())).collect();
    assert_eq!(names, [("low", 10), ("app", 10), ("high", 20), ("critical", 5)]);
}
