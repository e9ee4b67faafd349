use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rt::ManualClock;

use super::{registry::MAX_MACHINES, *};
use crate::{firmware::Firmware, labels::Labels};

const MAC: &str = "52:54:00:00:00:01";

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(std::time::UNIX_EPOCH + Duration::from_secs(1000)))
}

#[test]
fn counts_one_boot_from_firmware_to_system() {
    let inventory = Inventory::in_memory(clock());
    let address = Some("10.0.0.5".parse().unwrap());
    let boot = || {
        inventory.record_dhcp(MAC, None, Some(Firmware::Bios), false);
        inventory.record_dhcp(MAC, address, Some(Firmware::Bios), true);
        inventory.record_fetch("10.0.0.5".parse().unwrap(), Stage::Firmware, "undionly.kpxe");
        inventory.record_dhcp(MAC, None, Some(Firmware::Ipxe), false);
        inventory.record_dhcp(MAC, address, Some(Firmware::Ipxe), true);
        inventory.record(MAC, Event::new(Stage::Ipxe, Outcome::Succeeded));
        inventory.record_fetch("10.0.0.5".parse().unwrap(), Stage::Kernel, "vmlinuz");
        inventory.record_dhcp(MAC, address, None, true);
        inventory.record(MAC, Event::new(Stage::Config, Outcome::Succeeded));
    };
    boot();
    let stages = |machine: &Machine| -> Vec<Stage> {
        let mut stages: Vec<Stage> = machine.timeline.iter().map(|entry| entry.stage).collect();
        stages.dedup();
        stages
    };
    use Stage as S;
    let want = vec![S::Dhcp, S::Firmware, S::Dhcp, S::Ipxe, S::Kernel, S::Config];
    assert_eq!(stages(&inventory.machine(MAC).unwrap()), want);
    boot();
    let machine = inventory.machine(MAC).unwrap();
    assert_eq!((stages(&machine), machine.boots), (want, 2));
}

#[test]
fn shows_failure_until_machine_is_installed() {
    let inventory = Inventory::in_memory(clock());
    inventory.record(MAC, Event::new(Stage::Disks, Outcome::Failed).detail("no\u{1b}[31m <disk>"));
    let failure = inventory.machine(MAC).unwrap().failure.unwrap();
    assert_eq!((failure.stage, failure.text.as_str()), (Stage::Disks, "no [31m <disk>"));
    let page = page::all(&inventory.machines(), inventory.now());
    let many: Vec<Machine> = (0..1010)
        .map(|n| Machine { id: format!("m{n}"), seen: n, ..Machine::default() })
        .chain(inventory.machines())
        .collect();
    let long = page::all(&many, inventory.now());
    assert!(long.contains("and 11 more") && long.contains(MAC) && !long.contains("m5<"), "{long}");
    assert!(page.contains("1 failed") && page.contains("no [31m &lt;disk&gt;"), "{page}");
    inventory.record(MAC, Event::new(Stage::Installed, Outcome::Succeeded));
    assert_eq!(inventory.machine(MAC).unwrap().failure, None);
}

#[test]
fn keeps_records_over_restarts() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = dir.path().join("machines");
    let inventory = Inventory::open(path.clone(), clock.clone()).unwrap();
    inventory.record_dhcp(MAC, Some("10.0.0.5".parse().unwrap()), Some(Firmware::UefiX64), true);
    clock.advance(Duration::from_secs(3));
    inventory.record(MAC, Event::new(Stage::Installed, Outcome::Succeeded));
    inventory.set_nonce(MAC, "n", true);
    inventory.claim(MAC, "token").unwrap();
    let before = inventory.machine(MAC).unwrap();
    drop(inventory);
    let table = status::table(&path, 1_004_000).unwrap();
    assert!(table.contains(MAC) && table.contains("installed") && table.contains("1.0 s ago"));
    let timeline = status::timeline(&path, MAC, 1_004_000).unwrap().unwrap();
    assert!(timeline.contains("3.0 s  installed"), "{timeline}");
    let inventory = Inventory::open(path.clone(), clock).unwrap();
    assert_eq!(inventory.machine(MAC).unwrap(), before);
    assert_eq!(inventory.id(&labels(&[]), Some("10.0.0.5".parse().unwrap())).as_deref(), Some(MAC));
    assert_eq!(inventory.verify_nonce(MAC, &labels(&[("nonce", "n")])), Ok(()));
    assert_eq!(inventory.claim(MAC, "token"), Err(AccessError::Served("token".into())));
    // An operator requests a reinstallation: it happens once.
    assert!(inventory.is_installed(MAC));
    status::reinstall(&path, MAC).unwrap();
    assert!(!inventory.is_installed(MAC));
    // A second request before the installation has no further effect.
    status::reinstall(&path, MAC).unwrap();
    assert!(!inventory.is_installed(MAC));
    inventory.record(MAC, Event::new(Stage::Installed, Outcome::Succeeded).detail("again"));
    assert!(inventory.is_installed(MAC));
    assert!(status::reinstall(&path, "52:54:00:00:00:99").is_err());
}

#[test]
fn bounds_memory_for_unknown_machines() {
    let mut registry = Registry::default();
    registry.record(MAC, 0, Event::new(Stage::Installed, Outcome::Succeeded));
    for n in 0..MAX_MACHINES as u64 + 10 {
        let event = Event::new(Stage::Dhcp, Outcome::Started);
        registry.record(&format!("m{n}"), n, event);
    }
    let len = registry.len();
    assert!(len <= MAX_MACHINES && len > MAX_MACHINES * 9 / 10, "{len}");
    assert!(registry.get(MAC).is_some() && registry.get("m0").is_none());
    for n in 0..1000 {
        let event = Event::new(Stage::Disks, Outcome::Failed).detail(format!("{n} {:5000}", ""));
        registry.record(MAC, n, event);
    }
    let machine = registry.get(MAC).unwrap();
    assert!(machine.timeline.len() <= 64);
    assert!(machine.timeline.iter().all(|entry| entry.detail.len() <= 2048));
    let texts = |machine: &Machine| machine.timeline.iter().map(|e| e.detail.len()).sum::<usize>();
    for n in 0..100 {
        let text = format!("{n} {}", "x".repeat(2000));
        registry.record(MAC, n, Event::new(Stage::Disks, Outcome::Failed).detail(text));
    }
    let machine = registry.get(MAC).unwrap();
    assert!(texts(machine) <= 8192 && texts(machine) > 4096, "{}", texts(machine));
    assert!(machine.last().unwrap().detail.starts_with("99 "));
}

#[test]
fn accepts_nonce_for_its_boot_and_machine_only() {
    let inventory = Inventory::in_memory(clock());
    let with = |nonce: &str| labels(&[("nonce", nonce)]);
    assert_eq!(inventory.verify_nonce(MAC, &with("none yet")), Err(AccessError::WrongNonce));
    assert_eq!(inventory.verify_nonce(MAC, &with("")), Err(AccessError::NoNonce));
    inventory.set_nonce(MAC, "one", false);
    assert_eq!(inventory.verify_nonce(MAC, &labels(&[])), Err(AccessError::NoNonce));
    assert_eq!(inventory.verify_nonce(MAC, &with("one")), Ok(()));
    assert_eq!(
        inventory.verify_nonce("52:54:00:00:00:02", &with("one")),
        Err(AccessError::WrongNonce)
    );
    // A machine that received no nonce may report without one; a machine that received one may not.
    assert_eq!(inventory.verify_report(MAC, &labels(&[])), Ok(()));
    inventory.set_nonce(MAC, "two", true);
    assert_eq!(inventory.verify_report(MAC, &labels(&[])), Err(AccessError::NoNonce));
    assert_eq!(inventory.verify_nonce(MAC, &with("one")), Err(AccessError::WrongNonce));
}
