//! Provides a container's image.

use std::time::Duration;

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod};
use pod_core::go_duration;
use serde::Deserialize;

use super::{sandbox, security::ImageUser};
use crate::{
    context::Context,
    credentials::{PodAccount, ProviderCredential},
    pulls::{self, PullSecret, PullSource},
};

/// The error of an image that is not available, for the container's status.
#[derive(Debug)]
pub(super) struct PullError {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// An image that is on the node.
pub(super) struct LocalImage {
    /// The reference from which the container is created.
    pub(super) reference: String,
    pub(super) user: ImageUser,
}

/// An image that a Pod needs.
#[derive(Clone, Copy)]
pub(super) struct ImageRequest<'a> {
    /// The container that runs the image; `None` for an image volume.
    pub(super) container: Option<&'a str>,
    pub(super) image: &'a str,
    /// The pull policy; `None` for the default.
    pub(super) policy: Option<&'a str>,
}

impl<'a> ImageRequest<'a> {
    pub(super) fn of_container(container: &'a Container) -> Self {
        Self {
            container: Some(&container.name),
            image: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
        }
    }

    /// Records an Event of the container, or else of the Pod.
    fn record(
        &self,
        ctx: &Context,
        pod: &Pod,
        kind: &'static str,
        reason: &'static str,
        text: String,
    ) {
        match self.container {
            Some(name) => ctx.events.of_container(pod, name, kind, reason, text),
            None if kind == "Warning" => ctx.events.warn(pod, reason, text),
            None => ctx.events.normal(pod, reason, text),
        }
    }
}

/// Makes sure that an image is on the node, by its pull policy.
pub(super) async fn ensure(
    ctx: &Context,
    pod: &Pod,
    request: ImageRequest<'_>,
) -> Result<LocalImage, PullError> {
    let image = request.image;
    let failed =
        |error: cri::Error| PullError { reason: "ImageInspectError", message: error.message() };
    let present = ctx.cri.image_status(image).await.map_err(failed)?;
    let policy = request.policy.unwrap_or_else(|| default_policy(image));
    let mut credentials = None;
    let mut usable = present.filter(|_| policy != "Always");
    if let Some(image_id) = usable.as_ref().map(|present| present.id.clone()) {
        let must_pull = |own: &[Credential]| {
            let sources: Vec<PullSource> = own.iter().map(|c| c.source.clone()).collect();
            ctx.pull_records.must_pull(image, &image_id, &sources, ctx.now())
        };
        let mut own = secrets(ctx, pod, image).await;
        if must_pull(&own) {
            // Providers are only run if the Pod may not use the image without their credentials.
            own.extend(provided(ctx, pod, request).await);
            if must_pull(&own) {
                usable = None;
            }
            credentials = Some(own);
        }
    }
    if let Some(present) = usable {
        let text = format!(
            "Container image {image:?} already present on machine and can be accessed by the pod"
        );
        request.record(ctx, pod, "Normal", "Pulled", text);
        return Ok(of_image(present));
    }
    // The message does not reveal whether the image exists, because the Pod may not be allowed to use it.
    if policy == "Never" {
        let message = format!("Container image {image:?} is not present with pull policy of Never");
        request.record(ctx, pod, "Warning", "ErrImageNeverPull", message.clone());
        return Err(PullError { reason: "ErrImageNeverPull", message });
    }
    let credentials = match credentials {
        Some(credentials) => credentials,
        None => {
            let mut own = secrets(ctx, pod, image).await;
            own.extend(provided(ctx, pod, request).await);
            own
        }
    };
    ctx.pull_records.begin(image).map_err(|e| PullError {
        reason: "ErrImagePull",
        message: format!("failed to record image pull intent: {e}"),
    })?;
    let by = RunningPull { ctx, image, done: false };
    let pulled = pull(ctx, pod, request, credentials).await?;
    by.end(pulled.reference.as_str(), &pulled.by);
    match ctx.cri.image_status(image).await.map_err(failed)? {
        Some(present) => Ok(of_image(present)),
        None => Err(PullError {
            reason: "ErrImagePull",
            message: format!("image {image:?} was pulled but does not exist"),
        }),
    }
}

/// A running pull. Dropping it removes the pull's intent, after a failure or if the caller stops waiting.
struct RunningPull<'a> {
    ctx: &'a Context,
    image: &'a str,
    done: bool,
}

impl RunningPull<'_> {
    fn end(mut self, reference: &str, by: &PullSource) {
        self.done = true;
        self.ctx.pull_records.end(self.image, Some((reference, by)), self.ctx.now());
    }
}

impl Drop for RunningPull<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.ctx.pull_records.end(self.image, None, self.ctx.now());
        }
    }
}

/// A pulled image and the owner of the credentials that were needed.
struct PulledImage {
    reference: String,
    by: PullSource,
}

/// Credentials for an image, and their owner.
struct Credential {
    auth: v1::AuthConfig,
    source: PullSource,
}

fn of_image(image: v1::Image) -> LocalImage {
    let user = ImageUser { uid: image.uid.map(|u| u.value), name: image.username };
    LocalImage { reference: image.id, user }
}

/// Returns the default pull policy: `Always` for an image without a tag or with `latest`.
fn default_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let moves = !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if moves { "Always" } else { "IfNotPresent" }
}

async fn pull(
    ctx: &Context,
    pod: &Pod,
    request: ImageRequest<'_>,
    credentials: Vec<Credential>,
) -> Result<PulledImage, PullError> {
    let (queued, image) = (ctx.now(), request.image);
    request.record(ctx, pod, "Normal", "Pulling", format!("Pulling image {image:?}"));
    let _slot = ctx.pulls.slots.acquire().await;
    if !ctx.pulls.rate.try_take() {
        return Err(pull_error(ctx, pod, request, "pull QPS exceeded"));
    }
    let started = ctx.now();
    let since = |start| {
        let took = Duration::try_from(ctx.now().duration_since(start)).unwrap_or_default();
        go_duration(Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)))
    };
    let mut last = None;
    // Without matching credentials the image may still be public.
    let mut credentials: Vec<Option<Credential>> = credentials.into_iter().map(Some).collect();
    if credentials.is_empty() {
        credentials.push(None);
    }
    let sandbox = sandbox::config(ctx, pod, 0)
        .map_err(|e| PullError { reason: "ErrImagePull", message: e.to_string() })?;
    for credential in credentials {
        let (auth, by) = credential.map(|c| (c.auth, c.source)).unzip();
        let by = by.unwrap_or(PullSource::Node);
        match ctx.cri.pull_image(image, auth, sandbox.clone()).await {
            Ok(reference) => {
                ctx.startups.pulled(pod, started, ctx.now());
                let (took, waited) = (since(started), since(queued));
                let there = ctx.cri.image_status(image).await.ok().flatten();
                let size = there.as_ref().map_or(0, |i| i.size);
                // Records are looked up by the image ID.
                let reference = there.map_or(reference, |i| i.id);
                let text = format!(
                    "Successfully pulled image {image:?} in {took} ({waited} including waiting). Image size: {size} \
                     bytes."
                );
                request.record(ctx, pod, "Normal", "Pulled", text);
                return Ok(PulledImage { reference, by });
            }
            Err(error) => last = Some(error.message()),
        }
    }
    Err(pull_error(ctx, pod, request, &last.unwrap_or_default()))
}

/// Records the Events of a failed pull and returns its error.
fn pull_error(ctx: &Context, pod: &Pod, request: ImageRequest<'_>, cause: &str) -> PullError {
    let image = request.image;
    let text = format!("Failed to pull image {image:?}: {cause}");
    request.record(ctx, pod, "Warning", "Failed", text);
    request.record(ctx, pod, "Warning", "Failed", "Error: ErrImagePull".to_owned());
    let message = format!("failed to pull image {image:?}: {cause}");
    PullError { reason: "ErrImagePull", message }
}

/// Returns the credentials of the node's credential providers. A provider that fails is reported in an Event.
async fn provided(ctx: &Context, pod: &Pod, request: ImageRequest<'_>) -> Vec<Credential> {
    let account = PodAccount { pod, objects: &ctx.objects, now: ctx.now() };
    let provided = ctx.credential_providers.credentials(request.image, &account).await;
    for error in provided.errors {
        let reason = "FailedToRetrieveImagePullCredentials";
        request.record(ctx, pod, "Warning", reason, error.to_string());
    }
    let credential = |provided: ProviderCredential| Credential {
        auth: v1::AuthConfig {
            username: provided.username,
            password: provided.password,
            ..v1::AuthConfig::default()
        },
        source: provided.account.map_or(PullSource::Node, PullSource::Account),
    };
    provided.credentials.into_iter().map(credential).collect()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: std::collections::BTreeMap<String, DockerAuth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerAuth {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

/// Returns the credentials for the image's registry from the Pod's pull Secrets.
async fn secrets(ctx: &Context, pod: &Pod, image: &str) -> Vec<Credential> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let listed = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    let mut credentials = Vec::new();
    for reference in listed {
        let Ok(Some(secret)) = ctx.objects.secret(namespace, &reference.name).await else {
            continue;
        };
        let data = secret.data.unwrap_or_default();
        let auths = match (data.get(".dockerconfigjson"), data.get(".dockercfg")) {
            (Some(new), _) => {
                serde_json::from_slice::<DockerConfig>(&new.0).unwrap_or_default().auths
            }
            (None, Some(old)) => serde_json::from_slice(&old.0).unwrap_or_default(),
            (None, None) => continue,
        };
        let meta = secret.metadata;
        let place = PullSecret {
            uid: meta.uid.unwrap_or_default(),
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            credential_hash: String::new(),
        };
        let fitting = auths.into_iter().filter(|(registry, _)| is_for(registry, image));
        credentials.extend(fitting.map(|(registry, auth)| {
            let parts = [&auth.username, &auth.password, &auth.auth, &auth.identitytoken];
            let credential_hash = pulls::hex(format!("{parts:?}").as_bytes());
            let auth = v1::AuthConfig {
                username: auth.username,
                password: auth.password,
                auth: auth.auth,
                server_address: registry,
                identity_token: auth.identitytoken,
                registry_token: String::new(),
            };
            let secret = PullSecret { credential_hash, ..place.clone() };
            Credential { auth, source: PullSource::Secret(secret) }
        }));
    }
    credentials
}

/// Reports whether credentials for `registry` (a host, perhaps with a path, perhaps as a URL) match an image.
fn is_for(registry: &str, image: &str) -> bool {
    let registry =
        registry.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let registry = registry.trim_end_matches("/v1").trim_end_matches("/v2");
    let registry = if registry == "index.docker.io" { "docker.io" } else { registry };
    let first = image.split('/').next().unwrap_or_default();
    let hub = !image.contains('/') || !(first.contains(['.', ':']) || first == "localhost");
    let full = if hub { format!("docker.io/{image}") } else { image.to_owned() };
    full.strip_prefix(registry)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '@']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_pulls_only_images_with_moving_tag() {
        for (image, policy) in [
            ("app", "Always"),
            ("app:latest", "Always"),
            ("host:5000/app", "Always"),
            ("app:1", "IfNotPresent"),
            ("app@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(default_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn credentials_match_only_their_registry() {
        assert!(is_for("https://index.docker.io/v1/", "me/app:1"));
        assert!(is_for("registry.example:5000", "registry.example:5000/a/b:1"));
        assert!(is_for("registry.example/team", "registry.example/team/app"));
        assert!(!is_for("registry.example/team", "registry.example/team2/app"));
        assert!(!is_for("registry.example", "app"));
    }
}
