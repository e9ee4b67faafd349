//! Tests of compaction in turns.

use crate::{COMPACTION_KEY, Compactor, Error, KeyRange, Store, disk::sim::SimDisk};

use super::embedded::{brisk, done, open, put};

#[tokio::test]
async fn compacts_once_per_interval_whichever_server_is_first() {
    let store = open(&SimDisk::default(), brisk());
    let (mut one, mut other) = (Compactor::default(), Compactor::default());
    let mut turns = Vec::new();
    for interval in 0..5 {
        done(store.write(put("/a", interval.to_string())).await.unwrap());
        // The order of the servers alternates.
        let (first, second) =
            if interval % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        let compacted = first.step(&store).await.unwrap();
        assert_eq!(second.step(&store).await.unwrap(), compacted, "interval {interval}");
        turns.push(compacted);
        if let Some(revision) = compacted {
            let read = |revision| store.range(KeyRange::prefix("/"), 0, revision);
            assert!(read(revision).await.is_ok());
            assert!(matches!(read(revision - 1).await, Err(Error::Compacted { .. })));
        }
    }
    // Each interval takes two revisions, the change and the turn, starting at revision 1.
    assert_eq!(turns, [None, Some(3), Some(5), Some(7), Some(9)]);
}

#[tokio::test]
async fn ignores_a_revision_that_the_store_has_not_reached() {
    let store = open(&SimDisk::default(), brisk());
    let mut compactor = Compactor::default();
    for (claimed, believed) in [("1000000", None), ("18446744073709551615", None), ("2", Some(2))] {
        done(store.write(put(COMPACTION_KEY, claimed)).await.unwrap());
        assert_eq!(compactor.step(&store).await.unwrap(), believed, "{claimed}");
    }
}
