//! Tests of the lock of a cluster.

use std::time::Duration;

use api_meta::Timestamp;
use vfs::{Error, Precondition, Secrecy};

use crate::store;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn lock_has_one_holder_until_it_expires() {
    let (_dir, store) = store();
    let at = |seconds| Timestamp::from_unix(seconds, 0);
    let first = store.lock("a/lock", "ann", at(0), HOUR).unwrap();
    let refused = store.lock("a/lock", "bob", at(3599), HOUR).unwrap_err().to_string();
    assert!(refused.contains("ann") && refused.contains("1970-01-01T01:00:00Z"), "{refused}");
    let second = store.lock("a/lock", "bob", at(3600), HOUR).unwrap();
    // A holder that lost the lock cannot release it.
    assert!(matches!(store.unlock(first), Err(Error::Conflict { .. })));
    // A holder that renews the lock before it expires keeps it.
    let mut second = second;
    store.renew(&mut second, "bob", at(7000), HOUR).unwrap();
    assert!(store.lock("a/lock", "ann", at(10_599), HOUR).is_err());
    let third = store.lock("a/lock", "ann", at(10_600), HOUR).unwrap();
    assert!(matches!(
        store.renew(&mut second, "bob", at(10_601), HOUR),
        Err(Error::Conflict { .. })
    ));
    store.unlock(third).unwrap();
    assert_eq!(store.list("").unwrap(), [""; 0]);
}

#[test]
fn unreadable_lock_counts_as_held() {
    let (_dir, store) = store();
    for content in ["", "{\"holder\": \"ann\"", "{\"until\": 5}", "[]"] {
        let name = format!("lock-{}", content.len());
        store.write(&name, content.as_bytes(), &Precondition::Absent, Secrecy::Open).unwrap();
        let taken = store.lock(&name, "bob", Timestamp::from_unix(i64::from(u32::MAX), 0), HOUR);
        assert!(matches!(taken, Err(Error::Locked { .. })), "{content}");
    }
}
