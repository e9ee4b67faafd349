//! Reads the ConfigMaps, Secrets and Services that Pods refer to.

mod follow;

use std::{collections::BTreeMap, sync::Arc};

use api_meta::ObjectKey;
use client::{Client, Informer, ListOptions, Resource};
use follow::{Kind, ObjectWatches, Reference};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use pod_core::services::{Port, Service};
use serde::Deserialize;

use crate::worker::Shared;

/// A reader of ConfigMaps, Secrets and Services. ConfigMaps and Secrets are read on demand and not cached. While a
/// volume contains one, its changes are watched. All Services are cached, because every container's environment lists
/// them.
pub(crate) struct Objects {
    client: Option<Client>,
    followed: Option<ObjectWatches>,
    services: Option<Informer<ServiceView>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectsError {
    #[error("{0}")]
    Api(#[from] client::Error),
    #[error("{kind} \"{name}\" cannot be read: this kubelet has no API server (no --kubeconfig)")]
    Standalone { kind: &'static str, name: String },
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotRead,
}

/// The fields of a Service that its environment variables need.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceView {
    metadata: ObjectKey,
    spec: SpecView,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecView {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<PortView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PortView {
    name: String,
    port: i32,
    protocol: String,
}

impl ServiceView {
    fn service(&self) -> Service {
        let port = |p: &PortView| Port {
            name: p.name.clone(),
            port: p.port,
            protocol: p.protocol.clone(),
        };
        Service {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            cluster_ip: self.spec.cluster_ip.clone(),
            ports: self.spec.ports.iter().map(port).collect(),
        }
    }
}

impl Objects {
    pub(crate) fn new(client: Option<Client>, tasks: &rt::Tasks) -> Self {
        let services = client
            .as_ref()
            .map(|c| Informer::start(c, Resource::SERVICES, ListOptions::default(), tasks, |_| {}));
        let followed = client.clone().map(|client| ObjectWatches::new(client, tasks));
        Self { client, followed, services }
    }

    /// Wakes a Pod's worker when objects in its volumes change. Stops that if `pod` is `None`.
    pub(crate) fn follow(&self, uid: &str, user: &Arc<Shared>, pod: Option<&Pod>) {
        if let Some(followed) = &self.followed {
            followed.follow(uid, user, pod);
        }
    }

    fn record_version(
        &self,
        kind: Kind,
        (namespace, name): (&str, &str),
        version: Option<&String>,
    ) {
        if let Some(followed) = &self.followed {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            followed.record_version(&Reference { kind, namespace, name }, version);
        }
    }

    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ConfigMap>, ObjectsError> {
        let map: Option<ConfigMap> =
            self.get(&Resource::CONFIG_MAPS, "configmap", namespace, name).await?;
        let version = map.as_ref().and_then(|m| m.metadata.resource_version.as_ref());
        self.record_version(Kind::ConfigMap, (namespace, name), version);
        Ok(map)
    }

    pub(crate) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Secret>, ObjectsError> {
        let secret: Option<Secret> =
            self.get(&Resource::SECRETS, "secret", namespace, name).await?;
        let version = secret.as_ref().and_then(|s| s.metadata.resource_version.as_ref());
        self.record_version(Kind::Secret, (namespace, name), version);
        Ok(secret)
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        resource: &Resource,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ObjectsError> {
        let Some(client) = &self.client else {
            return Err(ObjectsError::Standalone { kind, name: name.to_owned() });
        };
        match client.get(resource, namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the environment variables of Services. Fails if Services are not yet synced and `must_be_known` is set;
    /// it is not for static Pods, because one may be the API server.
    pub(crate) fn service_variables(
        &self,
        namespace: &str,
        links: bool,
        must_be_known: bool,
    ) -> Result<BTreeMap<String, String>, ObjectsError> {
        let Some(services) = &self.services else { return Ok(BTreeMap::new()) };
        if !services.is_synced() && must_be_known {
            return Err(ObjectsError::ServicesNotRead);
        }
        let all: Vec<Service> = services.list().iter().map(|view| view.service()).collect();
        Ok(pod_core::services::variables(all.iter(), namespace, links))
    }
}
