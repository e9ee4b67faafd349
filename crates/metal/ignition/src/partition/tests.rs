use proptest::prelude::*;

use super::*;
use crate::gpt::Geometry;

/// 64 MiB.
const GEOMETRY: Geometry = Geometry { sector: 512, sectors: 131_072 };
const END: u64 = 131_038;

fn empty() -> Table {
    Table::empty(GEOMETRY, Guid([9; 16])).unwrap()
}

fn fresh() -> impl FnMut() -> Guid {
    let mut count = 0;
    move || {
        count += 1;
        Guid([count; 16])
    }
}

/// Parses NUMBER:START:SIZE:LABEL and flags: w(ipe), r(esize), d(elete). Empty fields are omitted from the config.
fn partition(text: &str) -> Partition {
    let mut fields = text.split(':');
    let mut next = || fields.next().unwrap_or_default();
    let number = next().parse().unwrap();
    let (start_mib, size_mib) = (next().parse().ok(), next().parse().ok());
    let label = Some(next()).filter(|label| !label.is_empty()).map(str::to_owned);
    let flags = next();
    Partition {
        number,
        start_mib,
        size_mib,
        label,
        wipe_partition_entry: flags.contains('w').then_some(true),
        resize: flags.contains('r').then_some(true),
        should_exist: flags.contains('d').then_some(false),
        ..Partition::default()
    }
}

fn disk(partitions: &[&str], wipe_table: bool) -> Disk {
    Disk {
        device: "/dev/x".into(),
        wipe_table: Some(wipe_table),
        partitions: partitions.iter().map(|text| partition(text)).collect(),
    }
}

/// Returns NUMBER:FIRST-LAST:LABEL for each partition.
fn shown(table: &Table) -> Vec<String> {
    let entries = table.entries.iter();
    entries.map(|(n, e)| format!("{n}:{}-{}:{}", e.first, e.last, e.label)).collect()
}

fn planned(first: &[&str], second: &[&str]) -> Result<Table, PlanError> {
    let before = plan(None, empty(), &disk(first, false), fresh()).unwrap();
    plan(Some(&before), empty(), &disk(second, false), fresh())
}

#[test]
fn lays_out_empty_disk() {
    for (partitions, want) in [
        (
            &["1:1:10:a", "2:11:5:b"][..],
            vec!["1:2048-22527:a".to_owned(), "2:22528-32767:b".into()],
        ),
        (&["1:0:0:all"], vec![format!("1:2048-{END}:all")]),
        (&["1::10:a", "2::0:rest"], vec!["1:2048-22527:a".into(), format!("2:22528-{END}:rest")]),
        (
            &["0::10:a", "5:40:0:b", "0:1:2:c"],
            vec!["1:2048-22527:a".into(), "2:2048-6143:c".into(), format!("5:81920-{END}:b")],
        ),
        (&["3:::gone:d"], vec![]),
    ] {
        match plan(None, empty(), &disk(partitions, false), fresh()) {
            Ok(table) => assert_eq!(shown(&table), want, "{partitions:?}"),
            Err(error) => {
                assert_eq!(error, PlanError::Taken { number: 2, first: 2048, last: 6143 })
            }
        }
    }
}

#[test]
fn keeps_resizes_replaces_or_rejects_partitions() {
    let start = &["1:1:10:a", "2:11:5:b"];
    for (second, want) in [
        (&["1:::a"][..], Ok(vec!["1:2048-22527:a", "2:22528-32767:b"])),
        (&["1:1:10:a", "2:11:5:b"], Ok(vec!["1:2048-22527:a", "2:22528-32767:b"])),
        (&["1::8::r"], Ok(vec!["1:2048-18431:a", "2:22528-32767:b"])),
        (
            &["1::8:"],
            Err(
                "partition 1 does not match: size is 20480 sectors, wanted 16384; set wipePartitionEntry to replace it",
            ),
        ),
        (&["1::8:c:w", "2:::"], Ok(vec!["1:2048-18431:c", "2:22528-32767:b"])),
        (
            &["1:::c"],
            Err(
                "partition 1 does not match: label is \"a\", wanted \"c\"; set wipePartitionEntry to replace it",
            ),
        ),
        (&["1::::dw"], Ok(vec!["2:22528-32767:b"])),
        (
            &["1::::d"],
            Err("partition 1 should not exist and does; set wipePartitionEntry to delete it"),
        ),
        (&["3::::d"], Ok(vec!["1:2048-22527:a", "2:22528-32767:b"])),
        (&["0:20:4:b2"], Ok(vec!["1:2048-22527:a", "2:22528-32767:b", "3:40960-49151:b2"])),
        (&["3:5:4:x"], Err("partition 3: sectors 10240 to 18431 are not free")),
        (
            &["3:4294967296:4:x"],
            Err("partition 3: sectors 8796093022208 to 8796093030399 are not free"),
        ),
    ] {
        let found = planned(start, second).map(|table| shown(&table));
        let found = found.map_err(|error| error.to_string());
        let want = want.map(|list| list.into_iter().map(str::to_owned).collect());
        assert_eq!(found, want.map_err(str::to_owned), "{second:?}");
    }
}

#[test]
fn reuses_number_of_deleted_partition() {
    let wanted = disk(&["1::::dw", "0::0:", "2:::"], false);
    let before = plan(None, empty(), &disk(&["1:1:10:a", "2:20:5:b"], false), fresh()).unwrap();
    let other = || Guid([200; 16]);
    let first = plan(Some(&before), empty(), &wanted, other).unwrap();
    assert_eq!(shown(&first), [format!("1:51200-{END}:"), "2:40960-51199:b".into()]);
    assert_eq!(first.get(1).unwrap().guid, other());
    // A second run changes nothing.
    let second = plan(Some(&first), empty(), &wanted, || Guid([201; 16])).unwrap();
    assert_eq!(second, first);
}

#[test]
fn recreated_table_keeps_guids() {
    let wanted = disk(&["1::10:a", "2::0:b"], true);
    let first = plan(None, empty(), &wanted, fresh()).unwrap();
    let other = move || Guid([200; 16]);
    let second = plan(Some(&first), empty(), &wanted, other).unwrap();
    assert_eq!(second, first);
}

fn any_partition() -> impl Strategy<Value = String> {
    let size =
        || proptest::option::of(0..20u64).prop_map(|n| n.map_or(String::new(), |n| n.to_string()));
    (1..6u32, size(), size(), "[abc]", "(w|r|)").prop_map(|(number, start, size, label, flags)| {
        format!("{number}:{start}:{size}:{label}{number}:{flags}")
    })
}

fn any_disk() -> impl Strategy<Value = Disk> {
    proptest::collection::vec(any_partition(), 0..5).prop_map(|list| {
        let mut seen = std::collections::BTreeSet::new();
        let list: Vec<&str> = list
            .iter()
            .map(String::as_str)
            .filter(|text| seen.insert(text.as_bytes()[0]))
            .collect();
        disk(&list, false)
    })
}

proptest! {
    #[test]
    fn second_plan_changes_nothing(wanted in any_disk()) {
        if let Ok(first) = plan(None, empty(), &wanted, fresh()) {
            let second = plan(Some(&first), empty(), &wanted, fresh());
            prop_assert_eq!(second, Ok(first));
        }
    }

    #[test]
    fn partitions_never_overlap(before in any_disk(), wanted in any_disk()) {
        let Ok(first) = plan(None, empty(), &before, fresh()) else { return Ok(()) };
        let Ok(second) = plan(Some(&first), empty(), &wanted, fresh()) else { return Ok(()) };
        let mut entries: Vec<_> = second.entries.iter().map(|(_, e)| (e.first, e.last)).collect();
        entries.sort_unstable();
        for pair in entries.windows(2) {
            prop_assert!(pair[0].1 < pair[1].0);
        }
        for (first, last) in entries {
            prop_assert!(first <= last && GEOMETRY.usable().contains(&first) && GEOMETRY.usable().contains(&last));
        }
        // Partitions that the config does not name are unchanged.
        for (number, entry) in &first.entries {
            if wanted.partitions.iter().all(|p| p.number != *number) {
                prop_assert_eq!(second.get(*number), Some(entry));
            }
        }
    }
}
