//! The machine that is being set up, and the state that its phases share.

use std::{sync::Arc, time::SystemTime};

use api_config::kubeadm::{ApiEndpoint, Timeouts, VirtualAddress};
use bootstrap_core::{
    Layout, certs,
    config::Init,
    kubeconfigs,
    manifests::{
        self, BALANCER, BALANCER_SERVERS, Component, EtcdMember, Machine, VIRTUAL_ADDRESS,
    },
};
use client::Client;
use rt::Clock;
use serde_json::Value;

use crate::{
    Error, FileChange, cluster,
    containers::Containers,
    error::io,
    external_ca::check_external,
    host::Host,
    kubeconfigs as files,
    manifests::write_pod,
    patches::Patches,
    service::{HostService, KubeletService},
};

/// A machine with its complete configuration and the interfaces that phases use.
pub struct Node {
    /// The completed configuration.
    pub config: Init,
    /// The paths for writing files.
    pub layout: Layout,
    /// The paths that components read. They lack the root or the dry run's directory of `layout`.
    pub paths: Layout,
    /// The facts about the machine.
    pub host: Host,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The user's patches.
    pub patches: Patches,
    /// The proxy variables of this process, which static Pods also get.
    pub proxy_env: Vec<(String, String)>,
    /// The container runtime.
    pub containers: Arc<dyn Containers>,
    /// The service manager of the kubelet.
    pub service: Arc<dyn KubeletService>,
    /// The program name for commands in messages.
    pub program: &'static str,
    /// Assigns the virtual IP address to the first control plane, before any cluster exists.
    pub take_address: TakeAddress,
    /// `true` to write to a temporary directory and contact no API server.
    pub dry_run: bool,
    /// `true` to print the cluster's objects instead of applying them.
    pub print_only: bool,
    client: Option<Client>,
}

/// Assigns a virtual IP address for an API server with its own address. Returns the cause of a failure.
pub type TakeAddress =
    fn(&VirtualAddress, &ApiEndpoint) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl Node {
    /// Creates a machine with the defaults of a user's command. Tests and dry runs change the fields.
    pub fn new(
        config: Init,
        layout: Layout,
        host: Host,
        clock: Arc<dyn Clock>,
        containers: Arc<dyn Containers>,
    ) -> Self {
        Self {
            config,
            paths: layout.clone(),
            layout,
            service: Arc::new(HostService(host.clone())),
            host,
            clock,
            containers,
            patches: Patches::none(),
            proxy_env: Vec::new(),
            program: "windlass",
            take_address: |_, _| Ok(()),
            dry_run: false,
            print_only: false,
            client: None,
        }
    }

    /// Returns the current time.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Returns the name of the Node.
    pub fn name(&self) -> &str {
        &self.config.init.node_registration.name
    }

    /// Returns the plan of this control plane's certificates.
    pub fn pki(&self) -> Result<certs::Plan, Error> {
        let config = &self.config;
        Ok(certs::Plan::new(&config.cluster, &config.init.local_api_endpoint, self.name())?)
    }

    /// Returns the plan of this control plane's kubeconfig files. Only the first one has `super-admin.conf`.
    pub fn kubeconfigs(&self, super_admin: bool) -> Vec<kubeconfigs::Plan> {
        kubeconfigs::plan(
            &self.config.cluster,
            &self.config.init.local_api_endpoint,
            self.name(),
            super_admin,
        )
    }

    /// Returns the authorities whose keys are kept elsewhere, after checking all files that they sign.
    pub(crate) fn external_authorities(&self) -> Result<Vec<certs::Ca>, Error> {
        check_external(
            &self.layout.kubernetes,
            &self.layout.certificates,
            &self.pki()?,
            &self.kubeconfigs(true),
            self.now(),
        )
    }

    /// Creates or checks one kubeconfig file by the name of its phase.
    pub(crate) fn ensure_kubeconfig(&self, phase: &str) -> Result<FileChange, Error> {
        let plans = self.kubeconfigs(true);
        let plan = plans
            .iter()
            .find(|p| p.phase == phase)
            .ok_or_else(|| Error::NoKubeconfig(phase.to_owned()))?;
        files::ensure_one(
            &self.layout.kubernetes,
            &self.layout.certificates,
            plan,
            &self.pki()?,
            self.now(),
        )
    }

    /// Returns `true` if this machine has the key of the cluster's CA.
    pub fn has_ca_key(&self) -> bool {
        self.layout.pki(certs::Ca::Kubernetes.base(), "key").exists()
    }

    /// Writes one component's static Pod. `members` are etcd's, if this machine joins them.
    pub(crate) fn write_manifest(
        &self,
        component: Component,
        members: &[EtcdMember],
    ) -> Result<FileChange, Error> {
        let pod = self.static_pod(component, members)?;
        write_pod(&pod, &self.layout.manifests(), &component.file())
    }

    /// Returns one component's static Pod; see [`Self::write_manifest`].
    pub(crate) fn static_pod(
        &self,
        component: Component,
        members: &[EtcdMember],
    ) -> Result<Value, Error> {
        let ca_directories = self.host.ca_directories();
        let machine = Machine {
            cluster: &self.config.cluster,
            local: &self.config.init.local_api_endpoint,
            node_name: self.name(),
            layout: &self.paths,
            ca_directories: &ca_directories,
            proxy_env: &self.proxy_env,
            has_ca_key: self.has_ca_key(),
            etcd_members: members,
        };
        crate::manifests::pod(component, &machine, &self.patches)
    }

    /// Returns the static Pods for access to the API that this machine has: load balancer and virtual IP address.
    pub(crate) fn access_pods(&self, is_control_plane: bool) -> Vec<(&'static str, Value)> {
        let cluster = &self.config.cluster;
        let balancer = cluster.node_balancer.as_ref();
        let held = cluster.virtual_address.as_ref().filter(|_| is_control_plane);
        let local = &self.config.init.local_api_endpoint;
        let mut pods = Vec::new();
        pods.extend(balancer.map(|b| (BALANCER, manifests::balancer(cluster, b, &self.paths))));
        pods.extend(held.map(|held| {
            let pod = manifests::virtual_address(cluster, held, local, self.name(), &self.paths);
            (VIRTUAL_ADDRESS, pod)
        }));
        pods
    }

    /// Writes the static Pod of this node's load balancer, if the cluster has one, and its first API server.
    pub(crate) fn write_balancer(&self, first: &str) -> Result<Vec<FileChange>, Error> {
        let mut pods = self.access_pods(false).into_iter();
        let Some((name, pod)) = pods.find(|(name, _)| *name == BALANCER) else {
            return Ok(Vec::new());
        };
        let mut touched = Vec::new();
        let servers = self.host.path(BALANCER_SERVERS);
        // An existing list is more recent.
        if !servers.exists() && !self.dry_run {
            let directory = servers.parent().unwrap_or(&servers);
            std::fs::create_dir_all(directory).map_err(io("create the directory", directory))?;
            pki::write_file(&servers, format!("{first}\n").as_bytes(), pki::PUBLIC_MODE)?;
            touched.push(FileChange::written(servers));
        }
        touched.push(self.write_access_pod(name, &pod)?);
        Ok(touched)
    }

    /// Writes the static Pod that contends for the virtual IP address, if the cluster has one.
    pub(crate) fn write_virtual_address(&self) -> Result<Option<FileChange>, Error> {
        let mut pods = self.access_pods(true).into_iter();
        let pod = pods.find(|(name, _)| *name == VIRTUAL_ADDRESS);
        pod.map(|(name, pod)| self.write_access_pod(name, &pod)).transpose()
    }

    fn write_access_pod(&self, name: &str, pod: &Value) -> Result<FileChange, Error> {
        write_pod(pod, &self.layout.manifests(), &format!("{name}.yaml"))
    }

    /// Returns the configured timeouts with defaults.
    pub fn timeouts(&self) -> Timeouts {
        let mut timeouts = self.config.init.timeouts.clone().unwrap_or_default();
        bootstrap_core::config::default_timeouts(&mut timeouts);
        timeouts
    }

    /// Returns a client with administrator rights.
    pub async fn client(&mut self) -> Result<Client, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = cluster::admin(&self.layout, self.timeouts().kubernetes_api_call).await?;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Applies objects to the cluster; a dry run only prints them.
    pub async fn apply_all(&mut self, objects: Vec<serde_json::Value>) -> Result<(), Error> {
        if self.print_only {
            for object in objects {
                print!("---\n{}", api_config::yaml::to_string(&object)?);
            }
            return Ok(());
        }
        if self.dry_run {
            for object in objects {
                println!(
                    "[dryrun] Would create or update:\n{}",
                    api_config::yaml::to_string(&object)?
                );
            }
            return Ok(());
        }
        let client = self.client().await?;
        cluster::apply_all(&client, objects).await
    }

    /// Returns the client set by [`Self::use_client`] or a previous call, if any.
    pub(crate) fn existing_client(&self) -> Option<Client> {
        self.client.clone()
    }

    /// Sets the client to use, as `up` does in its own process.
    pub fn use_client(&mut self, client: Client) {
        self.client = Some(client);
    }
}
