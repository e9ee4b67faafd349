//! Gives each Pod with `hostUsers: false` a range of user and group IDs of its own, and records it in the Pod's
//! directory. The records are all there is, so a restarted kubelet knows the ranges, and a range is free once the
//! Pod's directory is removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use pod_core::{
    paths::{DIRECTORY_MODE, pod_dir, user_namespace_file},
    user_namespaces::{
        IdRange, IdRangeError, IdRanges, RecordError, format_record, has_user_namespace,
        parse_record,
    },
};
use sys::{HostPrograms, ProgramError, Programs};

/// The user to whom an administrator assigns the IDs of Pods, in `/etc/subuid` and `/etc/subgid`.
const USER: &str = "kubelet";
/// The program that reads these files, and other sources of the name service.
const PROGRAM: &str = "getsubids";

/// The reason why the IDs for Pods with user namespaces are not known.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespacesError {
    #[error("create user namespace manager: read the users of this machine: {0}")]
    Users(io::Error),
    #[error(
        "create user namespace manager: error retrieving additional ids for user \"{USER}\": {0}"
    )]
    Program(#[from] ProgramError),
    #[error(
        "create user namespace manager: kubelet mappings: {0}; assign others in /etc/subuid and /etc/subgid, or change \
         maxPods or userNamespaces.idsPerPod"
    )]
    Ids(#[from] IdRangeError),
}

/// The error of a Pod that gets no user namespace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserNamespaceError {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "read the record of a Pod's user IDs, {}: {source}; delete the Pod whose UID is in the path", path.display()
    )]
    Record { path: PathBuf, source: RecordError },
    #[error(transparent)]
    Write(#[from] pki::Error),
    #[error("could not find an empty slot to allocate a user namespace")]
    Exhausted,
}

/// The user namespaces of a node's Pods. Cheap to clone.
#[derive(Clone)]
pub(crate) struct UserNamespaces {
    root: PathBuf,
    ranges: IdRanges,
    /// Serializes allocations.
    turn: Arc<Mutex<()>>,
}

impl UserNamespaces {
    /// Reads the IDs that the machine has for Pods. `root` is the kubelet's directory.
    pub(crate) fn new(
        root: &Path,
        ids_per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, UserNamespacesError> {
        let users = fs::read_to_string("/etc/passwd");
        let users = match users {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.map_err(UserNamespacesError::Users)?,
        };
        let ranges = ranges(&users, &HostPrograms, ids_per_pod, max_pods)?;
        Ok(Self { root: root.to_owned(), ranges, turn: Arc::default() })
    }

    /// Returns the range of a Pod with a user namespace, and allocates one if it has none yet.
    pub(crate) fn of_pod(&self, pod: &Pod) -> Result<Option<IdRange>, UserNamespaceError> {
        if !has_user_namespace(pod) {
            return Ok(None);
        }
        let dir = pod_dir(&self.root, pod.metadata.uid.as_deref().unwrap_or_default());
        let _turn = self.turn.lock();
        if let Some(range) = read(&dir)? {
            return Ok(Some(range));
        }
        let range = self.ranges.free(self.used()?).ok_or(UserNamespaceError::Exhausted)?;
        record(&dir, range)?;
        Ok(Some(range))
    }

    /// Returns the ranges of all Pods that have a directory.
    fn used(&self) -> Result<Vec<IdRange>, UserNamespaceError> {
        let pods = self.root.join("pods");
        let failed = |source| file("read directory", &pods)(source);
        let mut used = Vec::new();
        for entry in fs::read_dir(&pods).map_err(failed)? {
            used.extend(read(&entry.map_err(failed)?.path())?);
        }
        Ok(used)
    }
}

/// Returns the ranges that are assigned to the kubelet's user, or the default if there is no such user or no program to
/// ask, as upstream.
fn ranges(
    users: &str,
    programs: &dyn Programs,
    ids_per_pod: u32,
    max_pods: u32,
) -> Result<IdRanges, UserNamespacesError> {
    let unassigned = || Ok(IdRanges::unassigned(ids_per_pod, max_pods)?);
    if !users.lines().any(|line| line.split(':').next() == Some(USER)) {
        return unassigned();
    }
    let users = match programs.must(&[PROGRAM, USER]) {
        Err(ProgramError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            tracing::info!("{PROGRAM} is not installed; Pods with user namespaces get default IDs");
            return unassigned();
        }
        other => other?,
    };
    let groups = programs.must(&[PROGRAM, "-g", USER])?;
    Ok(IdRanges::assigned(&users, &groups, ids_per_pod, max_pods)?)
}

fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> UserNamespaceError {
    let path = path.to_owned();
    move |source| UserNamespaceError::File { operation, path, source }
}

/// Reads the record in a Pod's directory, if there is one.
fn read(pod_dir: &Path) -> Result<Option<IdRange>, UserNamespaceError> {
    let path = user_namespace_file(pod_dir);
    match fs::read(&path) {
        Ok(text) => parse_record(&text)
            .map(Some)
            .map_err(|source| UserNamespaceError::Record { path, source }),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(file("read", &path)(error)),
    }
}

/// Writes the record before the range is used. A killed kubelet leaves a whole record or none.
fn record(pod_dir: &Path, range: IdRange) -> Result<(), UserNamespaceError> {
    sys::make_directories(pod_dir, DIRECTORY_MODE).map_err(file("create directory", pod_dir))?;
    let text = format_record(range);
    Ok(pki::write_file(&user_namespace_file(pod_dir), text.as_bytes(), pki::PUBLIC_MODE)?)
}

#[cfg(test)]
mod tests {
    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    const PASSWD: &str = "root:x:0:0::/:/bin/sh\nkubelet:x:990:990::/:/bin/false\n";

    fn pod(uid: &str, host_users: bool) -> Pod {
        let pod = serde_json::json!({ "metadata": { "uid": uid }, "spec": { "hostUsers": host_users, "containers": [] } });
        serde_json::from_value(pod).unwrap()
    }

    fn node(root: &Path, pods: u32) -> UserNamespaces {
        fs::create_dir_all(root.join("pods")).unwrap();
        let ranges = IdRanges::unassigned(65_536, pods).unwrap();
        UserNamespaces { root: root.to_owned(), ranges, turn: Arc::default() }
    }

    #[test]
    fn keeps_ranges_over_restart_and_frees_those_of_removed_pods() {
        let root = tempfile::tempdir().unwrap();
        let first = |node: &UserNamespaces, uid: &str| {
            node.of_pod(&pod(uid, false)).map(|range| range.unwrap().first / 65_536)
        };
        let before = node(root.path(), 2);
        assert_eq!(before.of_pod(&pod("host", true)).unwrap(), None);
        assert_eq!((first(&before, "a").unwrap(), first(&before, "b").unwrap()), (1, 2));
        let after = node(root.path(), 2);
        assert_eq!((first(&after, "b").unwrap(), first(&after, "a").unwrap()), (2, 1));
        let error = first(&after, "c").unwrap_err().to_string();
        assert_eq!(error, "could not find an empty slot to allocate a user namespace");
        fs::remove_dir_all(pod_dir(root.path(), "a")).unwrap();
        assert_eq!(first(&after, "c").unwrap(), 1);
    }

    #[test]
    fn allocates_nothing_beside_an_unreadable_record() {
        let root = tempfile::tempdir().unwrap();
        let node = node(root.path(), 3);
        let path = user_namespace_file(&pod_dir(root.path(), "broken"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "{\"uidMappings\": [").unwrap();
        let error = node.of_pod(&pod("a", false)).unwrap_err().to_string();
        assert!(error.contains("pods/broken/userns: it is malformed"), "{error}");
        assert!(!pod_dir(root.path(), "a").exists());
    }

    #[test]
    fn gives_concurrent_pods_different_ranges() {
        let root = tempfile::tempdir().unwrap();
        let node = node(root.path(), 16);
        let mut ranges: Vec<u32> = std::thread::scope(|scope| {
            let one = |number: u32| {
                let node = &node;
                scope.spawn(move || node.of_pod(&pod(&number.to_string(), false)).unwrap().unwrap())
            };
            let threads: Vec<_> = (0..16).map(one).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().first / 65_536).collect()
        });
        ranges.sort_unstable();
        assert_eq!(ranges, (1..=16).collect::<Vec<u32>>());
    }

    #[test]
    fn reads_ids_assigned_to_the_kubelets_user() {
        let output = |users: &'static str, groups: &'static str| {
            RecordedPrograms::new(move |command| ProgramOutput {
                code: Some(0),
                stdout: if command.contains("-g") { groups } else { users }.to_owned(),
                stderr: String::new(),
            })
        };
        let line = "0: kubelet 131072 131072\n";
        let programs = output(line, line);
        let found = ranges(PASSWD, &programs, 65_536, 2).unwrap();
        assert_eq!(found.free([]).unwrap().first, 131_072);
        assert_eq!(programs.calls(), ["getsubids kubelet", "getsubids -g kubelet"]);
        let error = ranges(PASSWD, &output(line, "0: kubelet 65536 131072\n"), 65_536, 2);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("mismatched subuids and subgids for user \"kubelet\""), "{error}");
        let error = ranges(PASSWD, &output(line, line), 65_536, 3).unwrap_err().to_string();
        assert!(error.contains("not enough to support 3 pods"), "{error}");
        // Without the user, the program is not run.
        let others = PASSWD.replace("kubelet:", "kubelets:");
        let found = ranges(&others, &output("", ""), 65_536, 2).unwrap();
        assert_eq!(found.free([]).unwrap().first, 65_536);
        let failing =
            RecordedPrograms::new(|_| ProgramOutput { code: Some(1), ..Default::default() });
        assert!(ranges(PASSWD, &failing, 65_536, 2).is_err());
    }
}
