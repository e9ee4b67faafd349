//! The directory `manifests` of a cluster: applies the objects of its files, and deletes those whose entry is gone.
//!
//! The supervisor reads the directory every two seconds. Objects are applied by server-side apply. A record beside
//! the cluster's data ([`record`]) names the objects that were applied, so only these are deleted. An object that
//! existed before its first apply is never deleted. A file with an error keeps its objects, and does not stop others.
//! Read [`Manifests::sync`] first.

mod apply;
mod files;
mod record;
mod report;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use client::Client;

use self::{
    apply::Kinds,
    files::{Content, FileError, Stamp},
    record::{FileState, Key, RECORD, Record},
};
pub(crate) use self::{files::DIRECTORY, report::report};
use crate::{cluster::Cluster, error::Error, manifests_error::ManifestsError};

const INTERVAL: Duration = Duration::from_secs(2);
/// The longest delay between two attempts on files with errors.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Follows a cluster's directory until it is dropped.
pub(crate) async fn follow(cluster: Cluster) {
    let mut manifests = Manifests::new(&cluster.root);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let now = rt::now();
        match manifests.is_due(now) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) => {
                manifests.note(&error);
                continue;
            }
        }
        let done = match cluster.admin_client() {
            Ok(client) => manifests.sync(&client, now).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => manifests.noted.clear(),
            // The server is starting or stopping.
            Err(Error::Manifests(ManifestsError::Api(_))) => {}
            Err(error) => manifests.note(&error),
        }
    }
}

/// The state between two reads of the directory.
pub(crate) struct Manifests {
    directory: PathBuf,
    record: PathBuf,
    /// The files at the last pass, with their changes; `None` if one of them was not settled.
    seen: Option<BTreeMap<String, Stamp>>,
    /// The time of the next attempt on files with errors, and the delay before it.
    retry: Option<(SystemTime, Duration)>,
    /// The last error in the log, which is not repeated.
    noted: String,
}

impl Manifests {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            directory: root.join(DIRECTORY),
            record: root.join(RECORD),
            seen: None,
            retry: None,
            noted: String::new(),
        }
    }

    fn note(&mut self, error: &dyn std::error::Error) {
        let text = error.to_string();
        if text != self.noted {
            tracing::error!(error = text, "cannot follow the manifests");
            self.noted = text;
        }
    }

    /// Reports whether files have changed, or files with errors are to be tried again.
    fn is_due(&self, now: SystemTime) -> Result<bool, ManifestsError> {
        let stamps = files::scan(&self.directory)?;
        if self.retry.is_some_and(|(at, _)| now >= at) {
            return Ok(true);
        }
        let changed = self.seen.as_ref() != Some(&stamps);
        // Without files and a record there was never an object.
        let is_unused = self.seen.is_none() && stamps.is_empty() && !self.record.exists();
        Ok(changed && !is_unused)
    }

    /// Applies changed files and deletes objects whose entry is gone.
    ///
    /// # Errors
    ///
    /// Fails if the directory or the record cannot be read, or the server does not answer. The objects of files with
    /// errors are neither deleted nor changed, and the errors are recorded.
    pub(crate) async fn sync(
        &mut self,
        client: &Client,
        now: SystemTime,
    ) -> Result<(), ManifestsError> {
        let stamps = files::scan(&self.directory)?;
        let mut record = Record::load(&self.record)?;
        let mut pass = Pass { client, kinds: Kinds::default(), wanted: BTreeMap::new() };
        let (mut settled, mut changed) = (stamps.clone(), BTreeSet::new());
        // A file that may be half-written keeps its state.
        settled.retain(|_, stamp| !stamp.is_recent(now));
        for (name, stamp) in &settled {
            if !self.is_applied(name, stamp, record.files.get(name)).await? {
                changed.insert(name.as_str());
            }
        }
        pass.keep(&record, |file| stamps.contains_key(file) && !changed.contains(file));
        for name in changed {
            let path = self.directory.join(name);
            let read = tokio::task::spawn_blocking(move || files::read(&path)).await?;
            let state = pass.file(name, read, &mut record, &self.record).await?;
            record.files.insert(name.to_owned(), state);
        }
        record.files.retain(|name, _| stamps.contains_key(name));
        // An object that moves to a file which is still being written is not deleted in between.
        let is_settled = settled == stamps;
        let leftovers = if is_settled { record.leftovers(&pass.wanted) } else { Vec::new() };
        for (key, file) in leftovers {
            match apply::delete(client, &record.objects[&key]).await? {
                Ok(()) => drop(record.objects.remove(&key)),
                // The file may be gone, and the error is shown all the same.
                Err(error) => record.files.entry(file).or_default().errors.push(error),
            }
        }
        record.save(&self.record)?;
        if self.seen.as_ref() != Some(&stamps) {
            self.retry = None;
        }
        self.schedule(now, record.has_errors());
        self.seen = is_settled.then_some(stamps);
        Ok(())
    }

    /// Reports whether the content of a file was applied without errors. A file that has not changed since the last
    /// pass is not read.
    async fn is_applied(
        &self,
        name: &str,
        stamp: &Stamp,
        state: Option<&FileState>,
    ) -> Result<bool, ManifestsError> {
        let Some(state) = state.filter(|state| state.errors.is_empty()) else { return Ok(false) };
        if self.seen.as_ref().is_some_and(|seen| seen.get(name) == Some(stamp)) {
            return Ok(true);
        }
        let path = self.directory.join(name);
        let hash = tokio::task::spawn_blocking(move || files::hash(&path)).await?;
        Ok(hash.is_ok_and(|hash| hash == state.hash))
    }

    /// Plans the next attempt after errors, with growing delays until a file changes.
    fn schedule(&mut self, now: SystemTime, has_errors: bool) {
        let delay = match self.retry {
            Some((_, delay)) => (delay * 2).min(LONGEST_DELAY),
            None => INTERVAL,
        };
        self.retry = has_errors.then(|| (now + delay, delay));
    }
}

/// A pass over the files.
struct Pass<'a> {
    client: &'a Client,
    kinds: Kinds,
    /// The objects that files have, each with the first file that has it.
    wanted: BTreeMap<Key, String>,
}

impl Pass<'_> {
    /// Keeps the recorded objects of files.
    fn keep(&mut self, record: &Record, is_kept: impl Fn(&str) -> bool) {
        for (key, object) in record.objects.iter().filter(|(_, object)| is_kept(&object.file)) {
            self.wanted.entry(key.clone()).or_insert_with(|| object.file.clone());
        }
    }

    /// Applies a file and returns its new state.
    async fn file(
        &mut self,
        name: &str,
        read: Result<Content, FileError>,
        record: &mut Record,
        path: &Path,
    ) -> Result<FileState, ManifestsError> {
        let content = match read {
            Ok(content) => content,
            Err(error) => {
                self.keep(record, |file| file == name);
                return Ok(FileState { hash: String::new(), errors: vec![error.to_string()] });
            }
        };
        let mut state = FileState { hash: content.hash, errors: Vec::new() };
        let mut objects = Vec::new();
        for object in content.objects {
            match self.kinds.locate(self.client, object).await? {
                Err(error) => state.errors.push(error),
                Ok((key, object)) => match self.wanted.get(&key) {
                    Some(other) => {
                        state.errors.push(format!("{key} is also in the file {other}"));
                    }
                    None => {
                        self.wanted.insert(key.clone(), name.to_owned());
                        objects.push((key, object));
                    }
                },
            }
        }
        if !state.errors.is_empty() {
            // An entry whose kind is unknown now may be one of the recorded objects.
            self.keep(record, |file| file == name);
        }
        // Which objects existed before is recorded before the first is created, so that it also holds after a crash.
        for (key, object) in &objects {
            if !record.objects.contains_key(key) {
                let existed = apply::exists(self.client, object).await?;
                record.objects.insert(key.clone(), object.to_record(name, existed));
            }
        }
        record.save(path)?;
        for (key, object) in objects {
            match apply::apply(self.client, &object).await? {
                Ok(uid) => {
                    if let Some(recorded) = record.objects.get_mut(&key) {
                        recorded.applied(uid, name, &object.resource);
                    }
                }
                Err(error) => state.errors.push(format!("{key}: {error}")),
            }
        }
        Ok(state)
    }
}
