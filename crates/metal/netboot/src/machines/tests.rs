use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rt::ManualClock;

use super::{registry::MAX_MACHINES, *};
use crate::{dhcp::Firmware, matchbox::Labels};

const MAC: &str = "52:54:00:00:00:01";

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(std::time::UNIX_EPOCH + Duration::from_secs(1000)))
}

#[test]
fn counts_one_boot_from_firmware_to_system() {
    let book = Book::in_memory(clock());
    let address = Some("10.0.0.5".parse().unwrap());
    let boot = || {
        book.dhcp(MAC, None, Some(Firmware::Bios), false);
        book.dhcp(MAC, address, Some(Firmware::Bios), true);
        book.fetched("10.0.0.5".parse().unwrap(), Stage::Firmware, "undionly.kpxe");
        book.dhcp(MAC, None, Some(Firmware::Ipxe), false);
        book.dhcp(MAC, address, Some(Firmware::Ipxe), true);
        book.note(MAC, Note::new(Stage::Ipxe, Outcome::Succeeded));
        book.fetched("10.0.0.5".parse().unwrap(), Stage::Kernel, "vmlinuz");
        book.dhcp(MAC, address, None, true);
        book.note(MAC, Note::new(Stage::Config, Outcome::Succeeded));
    };
    boot();
    let stages = |machine: &Machine| -> Vec<Stage> {
        let mut stages: Vec<Stage> = machine.timeline.iter().map(|entry| entry.stage).collect();
        stages.dedup();
        stages
    };
    use Stage as S;
    let want = vec![S::Dhcp, S::Firmware, S::Dhcp, S::Ipxe, S::Kernel, S::Config];
    assert_eq!(stages(&book.machine(MAC).unwrap()), want);
    boot();
    let machine = book.machine(MAC).unwrap();
    assert_eq!((stages(&machine), machine.boots), (want, 2));
}

#[test]
fn shows_failure_until_machine_is_installed() {
    let book = Book::in_memory(clock());
    book.note(MAC, Note::new(Stage::Disks, Outcome::Failed).detail("no\u{1b}[31m <disk>"));
    let failure = book.machine(MAC).unwrap().failure.unwrap();
    assert_eq!((failure.stage, failure.text.as_str()), (Stage::Disks, "no [31m <disk>"));
    let page = page::all(&book.machines(), book.now());
    let many: Vec<Machine> = (0..1010)
        .map(|n| Machine { id: format!("m{n}"), seen: n, ..Machine::default() })
        .chain(book.machines())
        .collect();
    let long = page::all(&many, book.now());
    assert!(long.contains("and 11 more") && long.contains(MAC) && !long.contains("m5<"), "{long}");
    assert!(page.contains("1 failed") && page.contains("no [31m &lt;disk&gt;"), "{page}");
    book.note(MAC, Note::new(Stage::Installed, Outcome::Succeeded));
    assert_eq!(book.machine(MAC).unwrap().failure, None);
}

#[test]
fn keeps_records_over_restarts() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), clock());
    let path = dir.path().join("machines");
    let book = Book::open(path.clone(), clock.clone()).unwrap();
    book.dhcp(MAC, Some("10.0.0.5".parse().unwrap()), Some(Firmware::UefiX64), true);
    clock.advance(Duration::from_secs(3));
    book.note(MAC, Note::new(Stage::Installed, Outcome::Succeeded));
    book.new_nonce(MAC, "n", true);
    book.claim(MAC, "token").unwrap();
    let before = book.machine(MAC).unwrap();
    drop(book);
    let table = status::table(&path, 1_004_000).unwrap();
    assert!(table.contains(MAC) && table.contains("installed") && table.contains("1.0 s ago"));
    let timeline = status::timeline(&path, MAC, 1_004_000).unwrap().unwrap();
    assert!(timeline.contains("3.0 s  installed"), "{timeline}");
    let book = Book::open(path.clone(), clock).unwrap();
    assert_eq!(book.machine(MAC).unwrap(), before);
    assert_eq!(book.id(&labels(&[]), Some("10.0.0.5".parse().unwrap())).as_deref(), Some(MAC));
    assert_eq!(book.prove(MAC, &labels(&[("nonce", "n")])), Ok(()));
    assert_eq!(book.claim(MAC, "token"), Err(Refusal::Served("token".into())));
    // An operator requests a reinstallation: it happens once.
    assert!(book.is_installed(MAC));
    status::reinstall(&path, MAC).unwrap();
    assert!(!book.is_installed(MAC));
    // A second request before the installation has no further effect.
    status::reinstall(&path, MAC).unwrap();
    assert!(!book.is_installed(MAC));
    book.note(MAC, Note::new(Stage::Installed, Outcome::Succeeded).detail("again"));
    assert!(book.is_installed(MAC));
    assert!(status::reinstall(&path, "52:54:00:00:00:99").is_err());
}

#[test]
fn bounds_memory_for_unknown_machines() {
    let mut registry = Registry::default();
    registry.note(MAC, 0, Note::new(Stage::Installed, Outcome::Succeeded));
    for n in 0..MAX_MACHINES as u64 + 10 {
        let note = Note::new(Stage::Dhcp, Outcome::Started);
        registry.note(&format!("m{n}"), n, note);
    }
    assert_eq!(registry.len(), MAX_MACHINES);
    assert!(registry.get(MAC).is_some() && registry.get("m0").is_none());
    for n in 0..1000 {
        let note = Note::new(Stage::Disks, Outcome::Failed).detail(format!("{n} {:5000}", ""));
        registry.note(MAC, n, note);
    }
    let machine = registry.get(MAC).unwrap();
    assert!(machine.timeline.len() <= 64);
    assert!(machine.timeline.iter().all(|entry| entry.detail.len() <= 2048));
    let texts = |machine: &Machine| machine.timeline.iter().map(|e| e.detail.len()).sum::<usize>();
    for n in 0..100 {
        let text = format!("{n} {}", "x".repeat(2000));
        registry.note(MAC, n, Note::new(Stage::Disks, Outcome::Failed).detail(text));
    }
    let machine = registry.get(MAC).unwrap();
    assert!(texts(machine) <= 8192 && texts(machine) > 4096, "{}", texts(machine));
    assert!(machine.last().unwrap().detail.starts_with("99 "));
}

#[test]
fn accepts_nonce_for_its_boot_and_machine_only() {
    let book = Book::in_memory(clock());
    let with = |nonce: &str| labels(&[("nonce", nonce)]);
    assert_eq!(book.prove(MAC, &with("none yet")), Err(Refusal::WrongNonce));
    assert_eq!(book.prove(MAC, &with("")), Err(Refusal::NoNonce));
    book.new_nonce(MAC, "one", false);
    assert_eq!(book.prove(MAC, &labels(&[])), Err(Refusal::NoNonce));
    assert_eq!(book.prove(MAC, &with("one")), Ok(()));
    assert_eq!(book.prove("52:54:00:00:00:02", &with("one")), Err(Refusal::WrongNonce));
    // A machine that received no nonce may report without one; a machine that received one may not.
    assert_eq!(book.believe(MAC, &labels(&[])), Ok(()));
    book.new_nonce(MAC, "two", true);
    assert_eq!(book.believe(MAC, &labels(&[])), Err(Refusal::NoNonce));
    assert_eq!(book.prove(MAC, &with("one")), Err(Refusal::WrongNonce));
}
