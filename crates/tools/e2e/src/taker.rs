//! Takes clusters down when their test program ends, and those that an earlier one left because even its taker was
//! killed.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Once,
};

use rustix::fs::{FlockOperation, flock};

use crate::cluster::binary;

/// Waits for its standard input to be closed, which the kernel does even if the test program is killed. The cluster's
/// own copy of the binary is the one that knows what that cluster made.
const TAKE_DOWN: &str = r#"
trap '' INT TERM HUP
read -r _
windlass="$2/root/bin/windlass"
[ -x "$windlass" ] || windlass="$1"
name=$(basename "$2")
nsenter --net="/run/netns/$name" "$windlass" down --name "${name#windlass-}" --root "$2/root" \
    --kubeconfig "$2/kubeconfig" >"$2/down.log" 2>&1
ip netns delete "$name"
rm -rf --one-file-system "$2"
"#;

/// Starts the process that takes the cluster of this directory down once its standard input is closed.
pub(crate) fn start(directory: &Path) -> Child {
    let lock = lock(directory).unwrap_or_else(|e| panic!("locking {}: {e}", directory.display()));
    take(directory, lock.unwrap_or_else(|| panic!("{} is another's", directory.display())))
}

/// Takes down what is nobody's any more: its test program, whose pid is in its name, is gone, and so is its taker,
/// which held the directory's lock.
pub(crate) fn sweep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        let left = |name: &str| {
            let pid = name.strip_prefix("windlass-e2e-").and_then(|rest| rest.split('-').next());
            pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
        };
        for entry in all.filter(|entry| entry.file_name().to_str().is_some_and(left)) {
            let directory = entry.path();
            if let Ok(Some(lock)) = lock(&directory) {
                let mut taker = take(&directory, lock);
                drop(taker.stdin.take());
                let _ = taker.wait();
            }
        }
    });
}

fn lock(directory: &Path) -> std::io::Result<Option<File>> {
    let file = File::create(directory.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The lock is the process's standard error: that keeps it for as long as the process lives, and not longer.
fn take(directory: &Path, lock: File) -> Child {
    let mut taker = Command::new("sh");
    taker.args(["-c", TAKE_DOWN, "sh"]).arg(binary()).arg(directory);
    taker.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(lock);
    taker.spawn().unwrap_or_else(|e| panic!("starting sh: {e}"))
}
