//! Reads the ConfigMaps, Secrets and Services that Pods refer to.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::ObjectKey;
use client::{Client, Informer, ListOptions, Resource};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use pod_core::services::{Port, Service};
use serde::Deserialize;

use crate::watches::{Kind, ObjectWatches, Reference, VolumeUser};

/// A reader of ConfigMaps, Secrets and Services. ConfigMaps and Secrets are read on demand and not cached. While a
/// volume contains one, its changes are watched. All Services are cached, because every container's environment lists
/// them.
pub struct Objects {
    client: Option<Client>,
    watches: Option<ObjectWatches>,
    services: Option<Informer<ServiceView>>,
}

/// The error of an object that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error(transparent)]
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
    /// Starts to cache Services. Without a client, no object can be read.
    pub fn new(client: Option<Client>, tasks: &rt::Tasks) -> Self {
        let services = client
            .as_ref()
            .map(|c| Informer::start(c, Resource::SERVICES, ListOptions::default(), tasks, |_| {}));
        let watches = client.clone().map(|client| ObjectWatches::new(client, tasks));
        Self { client, watches, services }
    }

    /// Returns the client of the API server, if there is one.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Notifies `user` when objects in its volumes change. Ends the notifications if `pod` is `None`.
    pub fn follow(&self, uid: &str, user: Arc<dyn VolumeUser>, pod: Option<&Pod>) {
        if let Some(watches) = &self.watches {
            watches.follow(uid, &user, pod);
        }
    }

    fn record_version(&self, kind: Kind, namespace: &str, name: &str, version: Option<&String>) {
        if let Some(watches) = &self.watches {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            watches.record_version(&Reference { kind, namespace, name }, version);
        }
    }

    /// Reads a ConfigMap. Returns `None` if it does not exist.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ConfigMap>, ObjectsError> {
        let map: Option<ConfigMap> =
            self.get(&Resource::CONFIG_MAPS, "configmap", namespace, name).await?;
        let version = map.as_ref().and_then(|m| m.metadata.resource_version.as_ref());
        self.record_version(Kind::ConfigMap, namespace, name, version);
        Ok(map)
    }

    /// Reads a Secret. Returns `None` if it does not exist.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Secret>, ObjectsError> {
        let secret: Option<Secret> =
            self.get(&Resource::SECRETS, "secret", namespace, name).await?;
        let version = secret.as_ref().and_then(|s| s.metadata.resource_version.as_ref());
        self.record_version(Kind::Secret, namespace, name, version);
        Ok(secret)
    }

    /// Reads an object of any kind. Returns `None` if it does not exist.
    pub async fn get<T: serde::de::DeserializeOwned>(
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
    pub fn service_variables(
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
