//! Creates a container's configuration for the runtime.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use cri::{labels, v1};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements, VolumeDevice, VolumeMount};
use kubelet_objects::ObjectsError;
use kubelet_resources::DeviceSettings;
use kubelet_volumes::{EarlierResult, MountedVolumes, OperationError, SubPath, SubPathError};
use pod_core::{
    Observed, Role, container_hash, env, env_file,
    features::{Features, RecursiveReadOnlyError, check_groups, recursive_read_only},
    files::is_descending,
    hosts,
    paths::{self, DIRECTORY_MODE},
};

use super::{
    image_volumes::VolumeImages,
    limits,
    security::{self, ImageUser, NodeSecurity, SecurityError},
};
use crate::{
    context::Context,
    features::{self, FeaturesError},
    node::capacity,
};

/// The error of a container whose configuration cannot be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    #[error(transparent)]
    Env(#[from] env::EnvError),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Features(#[from] FeaturesError),
    #[error(transparent)]
    ReadOnly(#[from] RecursiveReadOnlyError),
    #[error("{0}")]
    Groups(String),
    #[error(
        "volume mount {mount}: the container may not have the mount propagation {propagation:?}"
    )]
    Propagation { mount: String, propagation: String },
    #[error("volume mount {mount}: the Pod has no such volume")]
    NoVolume { mount: String },
    #[error("volume {volume:?} cannot be a device of the container: it is not a block volume")]
    NoDevice { volume: String },
    #[error("volume mount {volume}: the path {path:?} must be relative and must not contain '..'")]
    ImagePath { volume: String, path: String },
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    #[error("volume {volume}: {source}")]
    Operation { volume: String, source: OperationError },
    #[error("env file {path:?}: {message}")]
    EnvFile { path: String, message: String },
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
}

/// A container that is about to be created.
pub(super) struct Request<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) role: Role,
    pub(super) attempt: u32,
    pub(super) image: &'a str,
    pub(super) image_user: &'a ImageUser,
    pub(super) volumes: &'a MountedVolumes,
    pub(super) image_volumes: &'a VolumeImages,
    pub(super) devices: &'a DeviceSettings,
    pub(super) observed: &'a Observed,
}

const MESSAGE_PATH: &str = "/dev/termination-log";

pub(super) async fn of_container(
    ctx: &Context,
    request: &Request<'_>,
) -> Result<v1::ContainerConfig, ConfigError> {
    let Request { pod, container, attempt, .. } = *request;
    let env = environment(ctx, request).await?;
    let lookup: BTreeMap<&str, &str> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expand =
        |text: &String| env::expand(text, |name| lookup.get(name).map(|v| (*v).to_owned()));
    // Mounts of the Pod come after those of device plugins and override them.
    let mut all = request.devices.mounts.clone();
    let features = features::of_container(ctx, pod, container).await?;
    check_groups(pod, features).map_err(|refusal| ConfigError::Groups(refusal.message))?;
    all.extend(mounts(ctx, request, features, &expand).await?);
    let target = target(request);
    let users = ctx.user_namespaces.of_pod(pod).map_err(SecurityError::from)?;
    for mount in &mut all {
        mount.uid_mappings = security::id_mappings(users);
        mount.gid_mappings = security::id_mappings(users);
    }
    let node = NodeSecurity { settings: &ctx.settings, users };
    let context = security::of_container(pod, container, request.image_user, target, node)?;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let labels = [
        (labels::POD_NAME, text(&pod.metadata.name)),
        (labels::POD_NAMESPACE, text(&pod.metadata.namespace)),
        (labels::POD_UID, text(&pod.metadata.uid)),
        (labels::CONTAINER, container.name.clone()),
    ];
    let policy = container.termination_message_policy.as_deref().unwrap_or("File");
    let annotations = [
        (labels::HASH, container_hash(container)),
        (labels::RESOURCES, resources(container.resources.as_ref())),
        (labels::SHARED_RESOURCES, resources(pod_core::resources::pod_level(pod))),
        (labels::RESTARTS, attempt.to_string()),
        (labels::MESSAGE_PATH, message_path(container)),
        (labels::MESSAGE_POLICY, policy.to_owned()),
        (labels::POD_GRACE, pod_core::grace_period(pod).as_secs().to_string()),
    ];
    let own = |pairs: &[(&str, String)]| -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
    };
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(v1::ImageSpec {
            image: request.image.to_owned(),
            user_specified_image: text(&container.image),
            ..Default::default()
        }),
        command: env::expand_all(container.command.as_deref().unwrap_or_default(), expand)?,
        args: env::expand_all(container.args.as_deref().unwrap_or_default(), expand)?,
        working_dir: text(&container.working_dir),
        envs: request
            .devices
            .envs
            .iter()
            .chain(env.iter().map(|(key, value)| (key, value)))
            .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: all,
        devices: devices(request)?,
        labels: own(&labels),
        annotations: request
            .devices
            .annotations
            .clone()
            .into_iter()
            .chain(own(&annotations))
            .collect(),
        cdi_devices: request.devices.cdi.clone(),
        log_path: format!("{}/{attempt}.log", container.name),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(limits::of_container(ctx, pod, container)),
            security_context: Some(context),
        }),
    })
}

fn resources(resources: Option<&ResourceRequirements>) -> String {
    serde_json::to_string(&resources.cloned().unwrap_or_default()).unwrap_or_default()
}

/// Returns the container whose processes an ephemeral container shares.
fn target(request: &Request<'_>) -> Option<String> {
    let listed = request.pod.spec.as_ref()?.ephemeral_containers.as_ref()?;
    let own = listed.iter().find(|e| e.name == request.container.name)?;
    let name = own
        .target_container_name
        .as_ref()
        .filter(|n| request.role == Role::Ephemeral && !n.is_empty())?;
    request.observed.newest(name).map(|c| c.id.clone())
}

fn message_path(container: &Container) -> String {
    container.termination_message_path.clone().unwrap_or_else(|| MESSAGE_PATH.to_owned())
}

async fn environment(
    ctx: &Context,
    request: &Request<'_>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let Request { pod, container, .. } = *request;
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let references = env::references(container);
    let (mut config_maps, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for name in references.config_maps {
        if let Some(map) = ctx.objects.config_map(&namespace, name).await? {
            config_maps.insert(name.to_owned(), map);
        }
    }
    for name in references.secrets {
        if let Some(secret) = ctx.objects.secret(&namespace, name).await? {
            secrets.insert(name.to_owned(), secret);
        }
    }
    let mut files = BTreeMap::new();
    for file in references.files {
        let Some(at) = request.volumes.path(&file.volume_name) else { continue };
        let (volume, path) = (at.path.clone(), file.path.clone());
        let read = on_volume(ctx, pod, &file.volume_name, move || env_file(&volume, &path));
        if let Some(text) = read.await?? {
            files.insert((file.volume_name.clone(), file.path.clone()), text);
        }
    }
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let services = ctx.objects.service_variables(&namespace, links, !pod_core::is_static(pod))?;
    let pod_ips = pod_core::pod_ips(pod, request.observed, &ctx.settings.node_ips);
    let node = capacity::node_facts(ctx, &pod_ips);
    let sources = env::Sources {
        pod,
        container,
        config_maps: &config_maps,
        secrets: &secrets,
        files: &files,
        services,
        node: &node,
    };
    Ok(env::environment(&sources)?)
}

/// Runs work on a volume's files. It may hang if the volume's server does not answer.
async fn on_volume<T: Send + 'static>(
    ctx: &Context,
    pod: &Pod,
    volume: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConfigError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    // The previous operation may be for another container.
    let done = ctx.volumes.operations.run((uid, volume), EarlierResult::Discard, work).await;
    done.map_err(|source| ConfigError::Operation { volume: volume.to_owned(), source })
}

/// Reads an env file of a volume. Returns `None` if it does not exist. A symbolic link cannot lead out of the volume.
fn env_file(volume: &Path, path: &str) -> Result<Option<String>, ConfigError> {
    use std::io::Read;
    pod_core::files::check_path(path)
        .map_err(|e| ConfigError::EnvFile { path: path.to_owned(), message: e.to_string() })?;
    // Resolve and open in one step. Otherwise a container could replace the file by a link to a file of the host.
    let Ok(file) = sys::read_beneath(volume, Path::new(path)) else { return Ok(None) };
    let mut text = String::new();
    file.take(env_file::LIMIT + 1).read_to_string(&mut text).map_err(|source| {
        ConfigError::File { operation: "read", path: volume.join(path), source }
    })?;
    if text.len() as u64 > env_file::LIMIT {
        let message = format!("it has more than {} bytes", env_file::LIMIT);
        return Err(ConfigError::EnvFile { path: path.to_owned(), message });
    }
    Ok(Some(text))
}

async fn mounts(
    ctx: &Context,
    request: &Request<'_>,
    features: Features,
    expand: &(dyn Fn(&String) -> Result<String, env::EnvError> + Sync),
) -> Result<Vec<v1::Mount>, ConfigError> {
    let Request { pod, container, .. } = *request;
    let mut mounts = Vec::new();
    let pod_dir = ctx.settings.pod_dir(pod.metadata.uid.as_deref().unwrap_or_default());
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let sub = match (&mount.sub_path_expr, &mount.sub_path) {
            (Some(expr), _) if !expr.is_empty() => expand(expr)?,
            (_, Some(path)) => path.clone(),
            _ => String::new(),
        };
        if let Some(image) = request.image_volumes.get(&mount.name) {
            mounts.push(image_mount(mount, image.clone(), sub)?);
            continue;
        }
        let volume = request
            .volumes
            .path(&mount.name)
            .filter(|volume| !volume.block)
            .ok_or_else(|| ConfigError::NoVolume { mount: mount.name.clone() })?;
        let host = if sub.is_empty() {
            volume.path.clone()
        } else {
            let part = SubPath {
                pod_dir: pod_dir.clone(),
                volume: volume.path.clone(),
                mount: mount.name.clone(),
                container: container.name.clone(),
                index,
                path: sub,
            };
            let mounts = ctx.volumes.mounts.clone();
            on_volume(ctx, pod, &mount.name, move || part.prepare(mounts.as_ref())).await??
        };
        let recursive = recursive_read_only(mount, features)?;
        mounts.push(v1::Mount {
            container_path: absolute(&mount.mount_path),
            host_path: host.display().to_string(),
            readonly: mount.read_only == Some(true) || volume.read_only,
            selinux_relabel: false,
            propagation: propagation(container, mount)?.into(),
            recursive_read_only: recursive,
            ..v1::Mount::default()
        });
    }
    let is_mounted = |path: &str| mounts.iter().any(|m| m.container_path == path);
    let hosts = (!is_mounted("/etc/hosts")).then(|| hosts_file(ctx, request)).transpose()?;
    let message = message_file(ctx, pod, container, request.attempt)?;
    let plain = |inside: String, host: PathBuf| v1::Mount {
        container_path: inside,
        host_path: host.display().to_string(),
        ..Default::default()
    };
    mounts.extend(hosts.map(|file| plain("/etc/hosts".to_owned(), file)));
    mounts.push(plain(message_path(container), message));
    Ok(mounts)
}

/// Returns the mount of an image, which is always read-only.
fn image_mount(
    mount: &VolumeMount,
    image: v1::ImageSpec,
    sub_path: String,
) -> Result<v1::Mount, ConfigError> {
    // The runtime resolves the path in the image. It must not have to judge a path that leads out.
    if !sub_path.is_empty() && !is_descending(&sub_path) {
        return Err(ConfigError::ImagePath { volume: mount.name.clone(), path: sub_path });
    }
    Ok(v1::Mount {
        container_path: absolute(&mount.mount_path),
        readonly: true,
        image: Some(image),
        image_sub_path: sub_path,
        ..v1::Mount::default()
    })
}

/// Returns the mount propagation. Only a privileged container may propagate mounts to the host.
fn propagation(
    container: &Container,
    mount: &VolumeMount,
) -> Result<v1::MountPropagation, ConfigError> {
    let context = container.security_context.as_ref();
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(v1::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(v1::MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") if context.and_then(|c| c.privileged) == Some(true) => {
            Ok(v1::MountPropagation::PropagationBidirectional)
        }
        Some(other) => Err(ConfigError::Propagation {
            mount: mount.name.clone(),
            propagation: other.to_owned(),
        }),
    }
}

/// Returns the devices of a container, from device plugins and block volumes.
fn devices(request: &Request<'_>) -> Result<Vec<v1::Device>, ConfigError> {
    let volume_devices = request.container.volume_devices.iter().flatten();
    let device = |device: &VolumeDevice| {
        let volume = request.volumes.path(&device.name).filter(|volume| volume.block);
        let volume = volume.ok_or_else(|| ConfigError::NoDevice { volume: device.name.clone() })?;
        Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: volume.path.display().to_string(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        })
    };
    let of_plugins = request.devices.devices.iter().cloned().map(Ok);
    of_plugins.chain(volume_devices.map(device)).collect()
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Writes a file that is mounted into a container, whose user may be any.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), ConfigError> {
    use std::os::unix::fs::PermissionsExt;
    let file = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| ConfigError::File { operation, path, source }
    };
    if let Some(parent) = path.parent() {
        sys::make_directories(parent, DIRECTORY_MODE).map_err(file("create directory", parent))?;
    }
    std::fs::write(path, content).map_err(file("write", path))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(file("set the mode of", path))
}

fn hosts_file(ctx: &Context, request: &Request<'_>) -> Result<PathBuf, ConfigError> {
    let pod = request.pod;
    let dir = ctx.settings.pod_dir(pod.metadata.uid.as_deref().unwrap_or_default());
    let path = paths::hosts_file(&dir);
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network) == Some(true);
    let of_host = host_network.then(|| std::fs::read_to_string("/etc/hosts").unwrap_or_default());
    let ips = pod_core::pod_ips(pod, request.observed, &ctx.settings.node_ips);
    let text = hosts::file(pod, &ips, &ctx.settings.cluster_domain, of_host.as_deref());
    write(&path, &text, 0o644)?;
    Ok(path)
}

/// Creates the termination log of a container. Any user in the container must be able to write it.
fn message_file(
    ctx: &Context,
    pod: &Pod,
    container: &Container,
    attempt: u32,
) -> Result<PathBuf, ConfigError> {
    let dir = ctx.settings.pod_dir(pod.metadata.uid.as_deref().unwrap_or_default());
    let path = paths::termination_log_dir(&dir, &container.name).join(attempt.to_string());
    write(&path, "", 0o666)?;
    Ok(path)
}
