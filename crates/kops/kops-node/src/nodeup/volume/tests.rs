//! Tests of a volume's states between the writes of a member's start.

use vfs::Store;

use super::*;

fn place(directory: &Path, member: &str) -> MemberVolume {
    let store = Store::open(&format!("file://{}/store", directory.display())).unwrap();
    MemberVolume {
        backups: Backups { store, directory: "backups/etcd/main".to_owned() },
        volume: directory.join(member),
        cluster: "c".to_owned(),
        etcd: "main".to_owned(),
        member: member.to_owned(),
        peer_url: format!("https://{member}"),
        members: ["a", "b"].map(str::to_owned).into(),
        founders: ["a", "b"].map(|name| (name.to_owned(), format!("https://{name}"))).into(),
        writes: Writes::default(),
    }
}

fn decide(place: &MemberVolume) -> Start {
    place.decide(&place.tag().unwrap(), &place.stored_state().unwrap(), None).unwrap()
}

fn run(place: &MemberVolume) {
    place.assign(&place.tag().unwrap(), &place.stored_state().unwrap()).unwrap();
    fs::create_dir_all(place.volume.join("data/member")).unwrap();
    assert!(place.record_use().unwrap());
}

#[test]
fn starts_cluster_once_when_all_volumes_are_blank() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
    assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("missing: b")));
    let Start::Mark(mark) = decide(&b) else { panic!("all are blank") };
    let before = b.stored_state().unwrap();
    b.write_mark(&mark, &before).unwrap();
    a.write_mark(&Mark::default(), &before).unwrap();
    for place in [&a, &b] {
        assert_eq!(decide(place), Start::Begin);
        place.assign(&place.tag().unwrap(), &place.stored_state().unwrap()).unwrap();
        // nodeup stopped before etcd ran, so the start is repeated.
        assert!(!place.record_use().unwrap());
        assert_eq!(decide(place), Start::Begin);
        run(place);
        assert_eq!(decide(place), Start::Run);
    }
    // etcd ran, and may have given votes.
    fs::remove_dir_all(b.data()).unwrap();
    assert!(matches!(decide(&b), Start::Wait(reason) if reason.contains("no backup")));
    // The volume is lost, but no second cluster starts.
    fs::remove_dir_all(&a.volume).unwrap();
    assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("started before")));
}

#[test]
fn restoration_waits_for_all_and_keeps_old_data() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
    run(&a);
    let spec = b.backups.path("control/etcd-cluster-spec");
    b.backups.store.write(&spec, b"{}", &Precondition::Absent, Secrecy::Open).unwrap();
    let restore = b.backups.write_command("backup", rt::now().into()).unwrap();
    // A member with data no longer runs it, and a member without data does not start.
    assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("missing: b")));
    let Start::Mark(mark) = decide(&b) else { panic!("all are known") };
    assert_eq!((mark.generation.clone(), mark.backup.as_str()), (restore.generation(), "backup"));
    // The backup does not exist: no mark is written, and no data is lost.
    assert!(b.unpack(&mark).is_err() && a.volume.join("data/member").exists());
    b.write_mark(&mark, &b.stored_state().unwrap()).unwrap();
    assert_eq!(b.backups.commands().unwrap(), []);
    let tag = a.tag().unwrap();
    assert_eq!(decide(&a), Start::Begin);
    a.set_aside(&tag).unwrap();
    a.set_aside(&tag).unwrap();
    assert_eq!(fs::read_dir(a.volume.join(TRASH)).unwrap().count(), 1);
    // A member that ends now may start once more; a member that has run may not.
    assert_eq!(decide(&a), Start::Begin);
    run(&a);
    assert_eq!(decide(&a), Start::Run);
    fs::remove_dir_all(a.volume.join("data")).unwrap();
    assert!(matches!(decide(&a), Start::Wait(_)));
}

#[test]
fn leaves_foreign_volumes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
    a.tag().unwrap();
    fs::rename(&a.volume, &b.volume).unwrap();
    assert!(matches!(decide(&b), Start::Refuse(reason) if reason.contains("member \"a\"")));
    fs::create_dir_all(a.volume.join("photos")).unwrap();
    assert!(matches!(decide(&a), Start::Refuse(_)));
    fs::write(b.volume.join("volume.json"), "{\"cluster\": 5}").unwrap();
    assert!(b.tag().unwrap_err().to_string().contains("does not name the owner"));
    // A store with a backup but no mark belongs to an earlier cluster.
    let c = place(dir.path(), "c");
    let path = c.backups.path("2026-11-23T10:00:00Z-000000/_etcd_backup.meta");
    c.backups.store.write(&path, b"{}", &Precondition::Absent, Secrecy::Open).unwrap();
    assert!(matches!(decide(&c), Start::Refuse(reason) if reason.contains("backup")));
}

#[test]
fn returns_to_the_data_from_before_an_undone_restoration() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
    let restored = Mark {
        generation: "restored-7".to_owned(),
        previous: Some(String::new()),
        ..Mark::default()
    };
    run(&a);
    fs::write(a.data().join("member/old"), "").unwrap();
    assert!(holds_generation(&a.volume, "") && !holds_generation(&b.volume, ""));
    let before = a.stored_state().unwrap();
    a.write_mark(&restored, &before).unwrap();
    a.set_aside(&a.tag().unwrap()).unwrap();
    run(&a);
    assert!(holds_generation(&a.volume, "") && holds_generation(&a.volume, "restored-7"));
    let stored = a.stored_state().unwrap();
    a.write_mark(&restored.undo().unwrap(), &stored).unwrap();
    let stored = a.stored_state().unwrap();
    assert_eq!(decide(&a), Start::Return);
    a.return_data(&a.tag().unwrap(), &stored).unwrap();
    assert!(a.data().join("member/old").exists());
    assert_eq!(decide(&a), Start::Run);
    a.return_data(&a.tag().unwrap(), &stored).unwrap();
    assert!(a.data().join("member/old").exists());
    // The other member has no data: it waits for the first one, and starts no cluster.
    assert!(matches!(decide(&b), Start::Wait(_)));
}

#[test]
fn ignores_files_of_an_interrupted_write() {
    let dir = tempfile::tempdir().unwrap();
    let a = place(dir.path(), "a");
    a.tag().unwrap();
    fs::write(a.volume.join(".new-Ab3"), "{").unwrap();
    assert_eq!(a.content().unwrap(), Content::Blank);
    fs::write(a.volume.join("new"), "{").unwrap();
    assert_eq!(a.content().unwrap(), Content::Foreign);
}
