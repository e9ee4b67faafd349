//! Takes clusters down when their test program ends, and cleans up after earlier test programs whose teardown process
//! was killed too.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Once,
};

use rustix::fs::{FlockOperation, flock};

use crate::programs::binary;

/// The teardown script. It waits until its standard input is closed, which the kernel does even if the test program is
/// killed. It prefers the cluster's own copy of the binary, because another version may not know all of its objects.
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

/// Starts the process that takes the cluster of a directory down once its standard input is closed.
pub(crate) fn start(directory: &Path) -> Child {
    let lock = lock(directory).unwrap_or_else(|e| panic!("locking {}: {e}", directory.display()));
    spawn(
        directory,
        lock.unwrap_or_else(|| panic!("{} is locked by another process", directory.display())),
    )
}

/// Takes down abandoned clusters: the test program, whose pid is in the directory's name, has ended, and no teardown
/// process holds the directory's lock.
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
                let mut process = spawn(&directory, lock);
                drop(process.stdin.take());
                let _ = process.wait();
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

/// Starts the teardown script. The lock file is its standard error, so the lock is held exactly while the process
/// lives.
fn spawn(directory: &Path, lock: File) -> Child {
    let mut process = Command::new("sh");
    process.args(["-c", TAKE_DOWN, "sh"]).arg(binary()).arg(directory);
    process.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(lock);
    process.spawn().unwrap_or_else(|e| panic!("starting sh: {e}"))
}
