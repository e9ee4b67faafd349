//! Log rotation of running containers.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::{labels, v1};
use futures_util::{StreamExt as _, stream};

use crate::context::Context;

#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Runtime(#[from] cri::Error),
}

fn at(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError + use<> {
    let path = path.to_owned();
    move |source| LogError::File { operation, path, source }
}

/// Rotates logs at their interval until shutdown.
pub(crate) async fn run(ctx: Arc<Context>) {
    loop {
        tokio::time::sleep(ctx.settings.log_interval).await;
        if let Err(error) = rotate(&ctx).await {
            tracing::warn!(%error, "rotate logs");
        }
    }
}

/// Rotates the logs of running containers that have grown too large, several at a time.
async fn rotate(ctx: &Context) -> Result<(), LogError> {
    let full = full_logs(&ctx.settings.logs, ctx.settings.log_max_size);
    if full.is_empty() {
        return Ok(());
    }
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
    let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let containers = ctx.cri.list_containers(Some(filter)).await?;
    let path = |container: &v1::Container| {
        let of = |name: &str| container.labels.get(name).map(String::as_str).unwrap_or_default();
        let pod = format!(
            "{}_{}_{}",
            of(labels::POD_NAMESPACE),
            of(labels::POD_NAME),
            of(labels::POD_UID)
        );
        let attempt = container.metadata.as_ref().map_or(0, |m| m.attempt);
        ctx.settings.logs.join(pod).join(of(labels::CONTAINER)).join(format!("{attempt}.log"))
    };
    let due = containers.into_iter().map(|container| (path(&container), container.id));
    let due = due.filter(|(path, _)| full.contains(path));
    // A failure must not drop a rotation of another log, whose runtime would go on writing to the renamed file.
    let one = |(path, id): (PathBuf, String)| async move {
        if let Err(error) = rotate_one(ctx, path, id).await {
            tracing::warn!(%error, "rotate a log");
        }
    };
    stream::iter(due).for_each_concurrent(ctx.settings.log_workers, one).await;
    Ok(())
}

/// Rotates one log. The older ones are compressed first, on a thread of their own.
async fn rotate_one(ctx: &Context, path: PathBuf, id: String) -> Result<(), LogError> {
    let stamp = ctx.now().strftime("%Y%m%d-%H%M%S").to_string();
    let (log, most) = (path.clone(), ctx.settings.log_max_files);
    let room = tokio::task::spawn_blocking(move || make_room(&log, most)).await;
    room.map_err(|error| at("compress the logs beside", &path)(error.into()))??;
    let mut aside = path.clone().into_os_string();
    aside.push(format!(".{stamp}"));
    let aside = PathBuf::from(aside);
    fs::rename(&path, &aside).map_err(at("rename", &path))?;
    if let Err(error) = ctx.cri.reopen_container_log(&id).await {
        // The runtime still writes to the renamed file, which therefore gets its name back.
        drop(fs::rename(&aside, &path));
        return Err(error.into());
    }
    Ok(())
}

/// Returns the logs, two directories below `root`, that are larger than `most` bytes.
fn full_logs(root: &Path, most: u64) -> Vec<PathBuf> {
    let below = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let files = below(root.to_owned()).flat_map(below).flat_map(below);
    let logs = files.filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.filter(|path| fs::metadata(path).is_ok_and(|m| m.len() > most)).collect()
}

/// Compresses rotated logs, and removes the oldest ones so that one more fits.
fn make_room(path: &Path, most: usize) -> Result<(), LogError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let prefix = format!("{}.", name.to_string_lossy());
    let entries = fs::read_dir(dir).map_err(at("read", dir))?;
    let mut rotated: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
        .map(|e| e.path())
        .collect();
    // The time in the name sorts as text.
    rotated.sort();
    // The limit includes the log itself and the one about to be rotated.
    let excess = rotated.len().saturating_sub(most.saturating_sub(2));
    for old in rotated.drain(..excess) {
        fs::remove_file(&old).map_err(at("remove", &old))?;
    }
    for plain in rotated.iter().filter(|p| p.extension().is_none_or(|e| e != "gz" && e != "tmp")) {
        compress(plain)?;
    }
    Ok(())
}

fn compress(path: &Path) -> Result<(), LogError> {
    let named = |ending: &str| PathBuf::from(format!("{}{ending}", path.display()));
    let (aside, done) = (named(".gz.tmp"), named(".gz"));
    let mut from = fs::File::open(path).map_err(at("open", path))?;
    let to = fs::File::create(&aside).map_err(at("make", &aside))?;
    // The compressed file has the permissions of the log.
    from.metadata()
        .and_then(|meta| to.set_permissions(meta.permissions()))
        .map_err(at("set the mode of", &aside))?;
    let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::default());
    io::copy(&mut from, &mut encoder).map_err(at("compress", path))?;
    encoder.finish().map_err(at("compress", path))?;
    fs::rename(&aside, &done).map_err(at("rename", &aside))?;
    fs::remove_file(path).map_err(at("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_oldest_logs_and_compresses_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for name in [
            "0.log",
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000",
            "0.log.20260103-000000",
            "1.log.20260101-000000",
        ] {
            fs::write(dir.path().join(name), "text").unwrap();
        }
        make_room(&log, 4).unwrap();
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "0.log",
                "0.log.20260102-000000.gz",
                "0.log.20260103-000000.gz",
                "1.log.20260101-000000"
            ]
        );
    }

    #[test]
    fn finds_only_large_logs_two_directories_down() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a_b_c/app");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("0.log"), "12345").unwrap();
        fs::write(below.join("1.log"), "1").unwrap();
        fs::write(below.join("0.log.20260101-000000"), "12345").unwrap();
        assert_eq!(full_logs(dir.path(), 4), [below.join("0.log")]);
    }
}
