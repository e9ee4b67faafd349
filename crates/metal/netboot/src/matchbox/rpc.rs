//! Matchbox's gRPC API, which changes the store.
//!
//! Errors have upstream's codes: not found for a selection without a match, unknown for everything else.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::BodyExt;
use serve::Body;
use tonic::{Status, server::NamedService};
use tower::{Service, ServiceExt};

use super::store::{Boot, Group, Kind, Pattern, Profile, Store, StoreError};
use crate::labels::Labels;

/// The messages and services generated from `proto/`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs, reason = "generated")]
mod wire {
    pub(super) mod storagepb {
        tonic::include_proto!("storagepb");
    }
    pub(super) mod serverpb {
        tonic::include_proto!("serverpb");
    }
    pub(super) mod rpcpb {
        tonic::include_proto!("rpcpb");
    }
}

use wire::{
    rpcpb::{
        generic_server::{Generic, GenericServer},
        groups_server::{Groups, GroupsServer},
        ignition_server::{Ignition, IgnitionServer},
        profiles_server::{Profiles, ProfilesServer},
        select_server::{Select, SelectServer},
    },
    serverpb as msg, storagepb,
};

/// The gRPC service of a store.
#[derive(Clone)]
pub struct Rpc(Arc<Store>);

impl Rpc {
    /// Creates the service. It does not authenticate callers, so its listener must require client certificates.
    pub fn new(store: Arc<Store>) -> Self {
        Self(store)
    }
}

impl serve::Handler for Rpc {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
        let (rpc, request) = (self.clone(), request.map(tonic::body::Body::new));
        match service.as_str() {
            GroupsServer::<Self>::NAME => call(GroupsServer::new(rpc), request).boxed(),
            ProfilesServer::<Self>::NAME => call(ProfilesServer::new(rpc), request).boxed(),
            IgnitionServer::<Self>::NAME => call(IgnitionServer::new(rpc), request).boxed(),
            GenericServer::<Self>::NAME => call(GenericServer::new(rpc), request).boxed(),
            SelectServer::<Self>::NAME => call(SelectServer::new(rpc), request).boxed(),
            _ => std::future::ready(
                Status::unimplemented(format!("unknown service {service}"))
                    .into_http::<tonic::body::Body>()
                    .map(body),
            )
            .boxed(),
        }
    }
}

async fn call<S>(service: S, request: Request<tonic::body::Body>) -> Response<Body>
where
    S: Service<
            Request<tonic::body::Body>,
            Response = Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        >,
{
    let Ok(response) = service.oneshot(request).await;
    response.map(body)
}

fn body(body: tonic::body::Body) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::unknown(error.to_string())
}

/// Runs file access on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Status> {
    super::blocking::run(work).await.map_err(failed)?.map_err(failed)
}

type Reply<T> = Result<tonic::Response<T>, Status>;

impl From<&Group> for storagepb::Group {
    fn from(group: &Group) -> Self {
        let selector = group.selector.iter().map(|(key, value)| (key.clone(), value.to_string()));
        let metadata = group.metadata.as_ref().map(|data| serde_json::Value::Object(data.clone()));
        Self {
            id: group.id.clone(),
            name: group.name.clone(),
            profile: group.profile.clone(),
            selector: selector.collect(),
            metadata: metadata.map(|data| data.to_string().into_bytes()).unwrap_or_default(),
        }
    }
}

/// Converts a group from a client, which must have an id and a profile.
fn group(sent: Option<storagepb::Group>) -> Result<Group, Status> {
    let sent = sent.unwrap_or_default();
    if sent.id.is_empty() {
        return Err(failed("Id is required"));
    }
    if sent.profile.is_empty() {
        return Err(failed("Group requires a Profile"));
    }
    let metadata = match sent.metadata.as_slice() {
        [] => None,
        text => serde_json::from_slice(text).map_err(failed)?,
    };
    let selector = sent.selector.into_iter().map(|(key, value)| (key, Pattern::Exact(value)));
    let (id, name, profile) = (sent.id, sent.name, sent.profile);
    Ok(Group { id, name, profile, selector: selector.collect(), metadata, tpm_key: None })
}

/// Restores fields that the gRPC API cannot represent: the TPM key, and lists and prefixes whose text is unchanged.
fn keep(group: &mut Group, old: Group) {
    group.tpm_key = old.tpm_key;
    for (key, pattern) in old.selector {
        if let Some(new) = group.selector.get_mut(&key)
            && new.to_string() == pattern.to_string()
        {
            *new = pattern;
        }
    }
}

impl From<Profile> for storagepb::Profile {
    fn from(profile: Profile) -> Self {
        let Boot { kernel, initrd, args } = profile.boot;
        Self {
            id: profile.id,
            name: profile.name,
            ignition_id: profile.ignition_id,
            cloud_id: profile.cloud_id,
            boot: Some(storagepb::NetBoot { kernel, initrd, args }),
            generic_id: profile.generic_id,
        }
    }
}

fn profile(sent: Option<storagepb::Profile>) -> Result<Profile, Status> {
    let sent = sent.unwrap_or_default();
    if sent.id.is_empty() {
        return Err(failed("Id is required"));
    }
    let boot = sent.boot.unwrap_or_default();
    Ok(Profile {
        id: sent.id,
        name: sent.name,
        ignition_id: sent.ignition_id,
        cloud_id: sent.cloud_id,
        generic_id: sent.generic_id,
        boot: Boot { kernel: boot.kernel, initrd: boot.initrd, args: boot.args },
        install_once: false,
    })
}

#[tonic::async_trait]
impl Groups for Rpc {
    async fn group_put(
        &self,
        request: tonic::Request<msg::GroupPutRequest>,
    ) -> Reply<msg::GroupPutResponse> {
        let (store, mut group) = (self.0.clone(), group(request.into_inner().group)?);
        let put = move || {
            if let Ok(old) = store.group_by_id(&group.id) {
                keep(&mut group, old);
            }
            store.put_group(&group)
        };
        blocking(put).await?;
        Ok(tonic::Response::new(msg::GroupPutResponse {}))
    }

    async fn group_get(
        &self,
        request: tonic::Request<msg::GroupGetRequest>,
    ) -> Reply<msg::GroupGetResponse> {
        let (store, id) = (self.0.clone(), request.into_inner().id);
        let group = blocking(move || store.group_by_id(&id)).await?;
        Ok(tonic::Response::new(msg::GroupGetResponse { group: Some((&group).into()) }))
    }

    async fn group_delete(
        &self,
        request: tonic::Request<msg::GroupDeleteRequest>,
    ) -> Reply<msg::GroupDeleteResponse> {
        let (store, id) = (self.0.clone(), request.into_inner().id);
        blocking(move || store.delete_group(&id)).await?;
        Ok(tonic::Response::new(msg::GroupDeleteResponse {}))
    }

    async fn group_list(
        &self,
        _: tonic::Request<msg::GroupListRequest>,
    ) -> Reply<msg::GroupListResponse> {
        let store = self.0.clone();
        let (groups, _) = blocking(move || Ok(store.groups())).await?;
        let groups = groups.iter().map(|group| group.as_ref().into()).collect();
        Ok(tonic::Response::new(msg::GroupListResponse { groups }))
    }
}

#[tonic::async_trait]
impl Profiles for Rpc {
    async fn profile_put(
        &self,
        request: tonic::Request<msg::ProfilePutRequest>,
    ) -> Reply<msg::ProfilePutResponse> {
        let (store, mut profile) = (self.0.clone(), profile(request.into_inner().profile)?);
        blocking(move || {
            // Keep the field that the gRPC API cannot represent.
            profile.install_once = store.profile(&profile.id).is_ok_and(|old| old.install_once);
            store.put_profile(&profile)
        })
        .await?;
        Ok(tonic::Response::new(msg::ProfilePutResponse {}))
    }

    async fn profile_get(
        &self,
        request: tonic::Request<msg::ProfileGetRequest>,
    ) -> Reply<msg::ProfileGetResponse> {
        let (store, id) = (self.0.clone(), request.into_inner().id);
        let profile = blocking(move || store.profile(&id)).await?;
        Ok(tonic::Response::new(msg::ProfileGetResponse { profile: Some(profile.into()) }))
    }

    async fn profile_delete(
        &self,
        request: tonic::Request<msg::ProfileDeleteRequest>,
    ) -> Reply<msg::ProfileDeleteResponse> {
        let (store, id) = (self.0.clone(), request.into_inner().id);
        blocking(move || store.delete_profile(&id)).await?;
        Ok(tonic::Response::new(msg::ProfileDeleteResponse {}))
    }

    async fn profile_list(
        &self,
        _: tonic::Request<msg::ProfileListRequest>,
    ) -> Reply<msg::ProfileListResponse> {
        let store = self.0.clone();
        let profiles = blocking(move || Ok(store.profiles().0)).await?;
        let profiles = profiles.into_iter().map(Into::into).collect();
        Ok(tonic::Response::new(msg::ProfileListResponse { profiles }))
    }
}

/// Implements the three methods of a template service.
macro_rules! templates {
    ($service:ident, $kind:expr, $put:ident: $put_in:ident -> $put_out:ident,
     $get:ident: $get_in:ident -> $get_out:ident, $delete:ident: $delete_in:ident -> $delete_out:ident) => {
        #[tonic::async_trait]
        impl $service for Rpc {
            async fn $put(&self, request: tonic::Request<msg::$put_in>) -> Reply<msg::$put_out> {
                let (store, sent) = (self.0.clone(), request.into_inner());
                blocking(move || store.put_template($kind, &sent.name, &sent.config)).await?;
                Ok(tonic::Response::new(msg::$put_out {}))
            }

            async fn $get(&self, request: tonic::Request<msg::$get_in>) -> Reply<msg::$get_out> {
                let (store, name) = (self.0.clone(), request.into_inner().name);
                let text = blocking(move || store.template($kind, &name)).await?;
                Ok(tonic::Response::new(msg::$get_out { config: text.into_bytes() }))
            }

            async fn $delete(
                &self,
                request: tonic::Request<msg::$delete_in>,
            ) -> Reply<msg::$delete_out> {
                let (store, name) = (self.0.clone(), request.into_inner().name);
                blocking(move || store.delete_template($kind, &name)).await?;
                Ok(tonic::Response::new(msg::$delete_out {}))
            }
        }
    };
}

templates!(Ignition, Kind::Ignition,
    ignition_put: IgnitionPutRequest -> IgnitionPutResponse,
    ignition_get: IgnitionGetRequest -> IgnitionGetResponse,
    ignition_delete: IgnitionDeleteRequest -> IgnitionDeleteResponse);
templates!(Generic, Kind::Generic,
    generic_put: GenericPutRequest -> GenericPutResponse,
    generic_get: GenericGetRequest -> GenericGetResponse,
    generic_delete: GenericDeleteRequest -> GenericDeleteResponse);

/// Selects the group for these labels.
async fn select(store: Arc<Store>, labels: Labels) -> Result<Arc<Group>, Status> {
    let group = super::blocking::run(move || store.select(&labels)).await.map_err(failed)?;
    group.map_err(|_| Status::not_found("matchbox: No matching Group"))
}

#[tonic::async_trait]
impl Select for Rpc {
    async fn select_group(
        &self,
        request: tonic::Request<msg::SelectGroupRequest>,
    ) -> Reply<msg::SelectGroupResponse> {
        let labels = request.into_inner().labels.into_iter().collect();
        let group = select(self.0.clone(), labels).await?;
        Ok(tonic::Response::new(msg::SelectGroupResponse { group: Some((&*group).into()) }))
    }

    async fn select_profile(
        &self,
        request: tonic::Request<msg::SelectProfileRequest>,
    ) -> Reply<msg::SelectProfileResponse> {
        let labels = request.into_inner().labels.into_iter().collect();
        let none = |_| Status::not_found("matchbox: No matching Profile");
        let group = select(self.0.clone(), labels).await.map_err(none)?;
        let store = self.0.clone();
        let profile = blocking(move || store.profile(&group.profile)).await.map_err(none)?;
        Ok(tonic::Response::new(msg::SelectProfileResponse { profile: Some(profile.into()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_fields_that_grpc_cannot_represent() {
        let text = r#"{"id":"g","profile":"p","tpm_key":"k","selector":{"mac":["52:54:00:00:00:01",
            "52:54:00:00:00:02"],"serial":{"prefix":"a"},"os":"x"}}"#;
        let old = Group::parse(text.as_bytes()).unwrap();
        let mut sent = group(Some(storagepb::Group::from(&old))).unwrap();
        assert_ne!(sent, old);
        keep(&mut sent, old.clone());
        assert_eq!(sent, old);
        let mut other = storagepb::Group::from(&old);
        other.selector.insert("serial".into(), "b".into());
        let mut sent = group(Some(other)).unwrap();
        keep(&mut sent, old);
        assert_eq!(sent.selector["serial"], Pattern::Exact("b".into()));
    }
}
