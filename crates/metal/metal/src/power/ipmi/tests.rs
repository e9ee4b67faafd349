//! Tests against our own simulated controller, and against OpenIPMI's if it is installed.

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::net::UdpSocket;

use super::{
    super::{Bmc, Kind},
    wire::{Exchange, Keys, Suite},
    *,
};

fn bmc(address: &SocketAddr, password: &str) -> Bmc {
    Bmc {
        kind: Kind::Ipmi,
        address: address.to_string(),
        user: "ipmiusr".into(),
        password: password.into(),
        uefi: false,
        insecure: false,
        ca: None,
        system: None,
    }
}

/// Answers the request for authentication capabilities: IPMI 2.0, lookup by name.
fn capabilities(packet: &[u8]) -> Option<Vec<u8>> {
    // An IPMI 1.5 packet outside of a session has nine zero bytes and a length.
    let message = packet.strip_prefix(&[6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0])?.get(1..)?;
    let message = wire::read_message(message)?;
    let data = [0, 1, 0x80, 4, 2, 0, 0, 0, 0];
    let answer = wire::response(message.function, message.sequence, message.command, &data);
    let length = [u8::try_from(answer.len()).unwrap()];
    Some([&packet[..13], &length, &answer].concat())
}

/// Simulates a controller with one suite that drops every `drops`-th packet and records its commands in `received`.
async fn simulate(socket: UdpSocket, suite: Suite, drops: u32, received: Arc<Mutex<Vec<Vec<u8>>>>) {
    let (mut buffer, mut count, mut on) = ([0; 1024], 0u32, false);
    let mut exchange = Exchange {
        suite,
        console: [0; 4],
        bmc: [9, 8, 7, 6],
        console_random: [0; 16],
        bmc_random: [5; 16],
        guid: [6; 16],
        role: 0,
        user: vec![],
        password: b"test".to_vec(),
    };
    let mut keys = None::<Keys>;
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        count += 1;
        if count.is_multiple_of(drops) {
            continue;
        }
        let packet = &buffer[..length];
        let sealed = keys.as_ref().and_then(|keys| keys.unseal(packet));
        let answer = if let Some((session, message)) = sealed {
            assert_eq!(session, exchange.bmc);
            let wire::Message { function, sequence, command, data } =
                wire::read_message(&message).unwrap();
            received.lock().push([&[function, command], data].concat());
            let data = match (function, command) {
                (CHASSIS, 1) => vec![0, u8::from(on), 0, 0],
                (CHASSIS, 2) => {
                    on = data != [0];
                    vec![0]
                }
                (6, 0x3b) => vec![0, data[0]],
                (CHASSIS, 8) | (6, 0x3c) => vec![0],
                _ => vec![0xc1],
            };
            let message = wire::response(function, sequence, command, &data);
            keys.as_ref().unwrap().seal(exchange.console, 1, &message, [1; 16]).unwrap()
        } else if let Some(answer) = capabilities(packet) {
            answer
        } else {
            let Some((kind, payload)) = wire::read_open(packet) else { continue };
            match kind {
                wire::OPEN_REQUEST => {
                    exchange.console = payload[4..8].try_into().unwrap();
                    let status = if payload[12] == suite.numbers()[0] { 0 } else { 0x11 };
                    let ids = [&[0, status, 4, 0], &exchange.console[..], &exchange.bmc];
                    let answer = [&ids.concat(), &payload[8..32]];
                    wire::open_frame(wire::OPEN_RESPONSE, &answer.concat())
                }
                wire::RAKP1 => {
                    exchange.console_random = payload[8..24].try_into().unwrap();
                    exchange.role = payload[24];
                    exchange.user = payload[28..].to_vec();
                    let answer = [
                        &[0; 4],
                        &exchange.console[..],
                        &exchange.bmc_random,
                        &exchange.guid,
                        &exchange.rakp2(),
                    ];
                    wire::open_frame(wire::RAKP2, &answer.concat())
                }
                wire::RAKP3 => {
                    assert_eq!(payload[8..], exchange.rakp3());
                    keys = Some(exchange.keys());
                    let answer = [&[0; 4], &exchange.console[..], &exchange.rakp4()];
                    wire::open_frame(wire::RAKP4, &answer.concat())
                }
                _ => continue,
            }
        };
        socket.send_to(&answer, from).await.unwrap();
    }
}

#[tokio::test]
async fn powers_machine_despite_packet_loss() {
    for suite in [Suite::Sha256, Suite::Sha1] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let controller = simulate(socket, suite, 3, received.clone());
        let work = async {
            let mut session = Session::open(&bmc(&address, "test")).await.unwrap();
            assert_eq!(perform(&mut session, Action::Status, false).await.unwrap(), "off");
            perform(&mut session, Action::BootNetwork, true).await.unwrap();
            assert_eq!(perform(&mut session, Action::Status, false).await.unwrap(), "on");
            let unknown = session.command("x", 6, 1, &[]).await.unwrap_err().to_string();
            assert!(unknown.contains("does not know this command"), "{unknown}");
            session.close().await;
            let wrong = Session::open(&bmc(&address, "wrong")).await;
            assert!(matches!(wrong, Err(Error::Password)));
        };
        tokio::select! {
            () = work => {}
            () = controller => {}
        }
        let received = received.lock();
        // Network for the next boot, then power on.
        assert!(received.contains(&vec![CHASSIS, 8, 5, 0xa0, 4, 0, 0, 0]), "{received:?}");
        assert!(received.contains(&vec![CHASSIS, 2, 1]), "{received:?}");
    }
}

/// ipmitool finds errors that our client and our controller share.
#[tokio::test]
async fn ipmitool_controls_our_simulator_with_both_suites() {
    for (suite, number) in [(Suite::Sha256, "17"), (Suite::Sha1, "3")] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port().to_string();
        let received = Arc::new(Mutex::new(Vec::new()));
        let tool = move || {
            let arguments = ["-I", "lanplus", "-H", "127.0.0.1", "-p", &port, "-U", "ipmiusr"];
            let command = ["-P", "test", "-C", number, "chassis", "power", "on"];
            Command::new("ipmitool").args(arguments).args(command).output()
        };
        let ran = tokio::select! {
            ran = tokio::task::spawn_blocking(tool) => ran.unwrap(),
            () = simulate(socket, suite, u32::MAX, received.clone()) => unreachable!(),
        };
        let Ok(ran) = ran else {
            eprintln!("skipped: ipmitool is not installed");
            return;
        };
        assert!(ran.status.success(), "suite {number}: {ran:?}");
        assert!(received.lock().contains(&vec![CHASSIS, 2, 1]), "suite {number}: {received:?}");
    }
}

/// OpenIPMI's simulator.
struct Simulator {
    process: Child,
    _dir: tempfile::TempDir,
    state: std::path::PathBuf,
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn simulator(port: u16) -> Option<Simulator> {
    let mut help = Command::new("ipmi_sim");
    if help.arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("skipped: ipmi_sim (openipmi) is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let chassis = path("chassis");
    let body = format!(
        "echo \"$@\" >> {chassis}.log\n\
         [ \"$1\" = get ] && case $2 in boot) echo boot:none;; *) echo $2:0;; esac\nexit 0"
    );
    testkit::write_script(chassis.as_ref(), &body);
    let config = format!(
        "name \"sim\"\nset_working_mc 0x20\n  startlan 1\n    addr 127.0.0.1 {port}\n    priv_limit admin\n\
         \x20   allowed_auths_admin none md2 md5 straight\n    guid a123456789abcdefa123456789abcdef\n  endlan\n\
         \x20 chassis_control \"{chassis}\"\n  user 1 true \"\" \"test\" user 10 none md2 md5 straight\n\
         \x20 user 2 true \"ipmiusr\" \"test\" admin 10 none md2 md5 straight\n"
    );
    std::fs::write(path("lan.conf"), config).unwrap();
    let commands =
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n";
    std::fs::write(path("commands"), commands).unwrap();
    let arguments = ["-n", "-c", &path("lan.conf"), "-f", &path("commands"), "-s", &path("state")];
    let process = Command::new("ipmi_sim")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Some(Simulator { process, state: format!("{chassis}.log").into(), _dir: dir })
}

#[tokio::test]
async fn controls_openipmi_simulator() {
    let port = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let Some(simulator) = simulator(port) else { return };
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let mut opened = None;
    for _ in 0..100 {
        // Until it listens, the kernel rejects packets.
        match Session::open_with(&bmc(&address, "test"), Suite::Sha1).await {
            Err(Error::Socket(_)) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            result => {
                opened = Some(result.unwrap());
                break;
            }
        }
    }
    let mut session = opened.unwrap();
    assert_eq!(perform(&mut session, Action::Status, false).await.unwrap(), "off");
    perform(&mut session, Action::NextBootNetwork, false).await.unwrap();
    perform(&mut session, Action::On, false).await.unwrap();
    session.close().await;
    let received = std::fs::read_to_string(&simulator.state).unwrap();
    assert!(received.contains("set power 1") && received.contains("set boot pxe"), "{received}");
    let wrong = Session::open_with(&bmc(&address, "wrong"), Suite::Sha1).await;
    assert!(matches!(wrong, Err(Error::Password)));
}

proptest::proptest! {
    #[test]
    fn unseals_only_sealed_packets(
        message in proptest::collection::vec(0u8..=255, 1..60),
        sequence: u32,
        flip in 0usize..1000,
    ) {
        let exchange = Exchange {
            suite: Suite::Sha256, console: [1; 4], bmc: [2; 4], console_random: [3; 16],
            bmc_random: [4; 16], guid: [5; 16], role: 0x14, user: b"u".to_vec(), password: b"p".to_vec(),
        };
        let keys = exchange.keys();
        let mut packet = keys.seal([2; 4], sequence, &message, [7; 16]).unwrap();
        proptest::prop_assert_eq!(keys.unseal(&packet), Some(([2; 4], message)));
        let at = 4 + flip % (packet.len() - 4);
        packet[at] ^= 1;
        proptest::prop_assert_eq!(keys.unseal(&packet), None);
    }

    #[test]
    fn reads_arbitrary_packets_without_panic(bytes in proptest::collection::vec(0u8..=255, 0..120)) {
        let framed = [&[6, 0, 0xff, 7, 6], &bytes[..]].concat();
        for bytes in [&bytes, &framed] {
            wire::read_open(bytes);
            wire::read_message(bytes);
        }
    }
}

#[test]
fn damaged_packets() {
    let exchange = |suite| Exchange {
        suite,
        console: [1; 4],
        bmc: [2; 4],
        console_random: [3; 16],
        bmc_random: [5; 16],
        guid: [6; 16],
        role: 4,
        user: b"u".to_vec(),
        password: b"p".to_vec(),
    };
    let keys = [exchange(Suite::Sha256).keys(), exchange(Suite::Sha1).keys()];
    let message = wire::response(CHASSIS, 1, 1, &[0, 1, 0, 0]);
    let sealed = keys.each_ref().map(|keys| keys.seal([1; 4], 1, &message, [9; 16]).unwrap());
    let open = wire::open_frame(wire::RAKP2, &[0; 60]);
    let seeds: [&[u8]; 4] = [&sealed[0], &sealed[1], &open, &message];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "ipmi", &seeds, |input| {
        let _ = wire::read_open(input);
        let _ = wire::read_message(input);
        for keys in &keys {
            if let Some((_, message)) = keys.unseal(input) {
                let _ = wire::read_message(&message);
            }
            // The payload behind a valid signature can be arbitrary.
            let sealed = keys.seal([1; 4], 1, &input[..input.len().min(60_000)], [9; 16]).unwrap();
            assert!(keys.unseal(&sealed).is_some());
        }
    });
}
