//! The machine that is being set up, and what its phases share.

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

use crate::{
    Error, Touched,
    certs::check_external,
    cluster,
    containers::Containers,
    error::io,
    host::Host,
    kubeconfigs as files,
    manifests::{write, write_pod},
    patches::Patches,
    service::{HostService, KubeletService},
};

/// A machine with its whole configuration, and everything that phases act through.
pub struct Node {
    pub config: Init,
    /// Where files are written.
    pub layout: Layout,
    /// Where the components find them: the same places but for a root or a dry run's directory before them.
    pub paths: Layout,
    pub host: Host,
    pub clock: Arc<dyn Clock>,
    pub patches: Patches,
    /// The proxy variables of this process, which static Pods are given too.
    pub proxy_env: Vec<(String, String)>,
    pub containers: Arc<dyn Containers>,
    /// Who keeps the kubelet running.
    pub service: Arc<dyn KubeletService>,
    /// The name by which users call this, for the commands that they are told.
    pub program: &'static str,
    /// Gives the first control plane the virtual address, which no one can contend for before there is a cluster.
    pub take_address: TakeAddress,
    /// Writes under a temporary directory and asks no API server.
    pub dry_run: bool,
    /// Prints the objects that it would bring into a cluster, for others to bring there.
    pub print_only: bool,
    client: Option<Client>,
}

/// Takes a virtual address for an API server's own address; the error says why it could not.
pub type TakeAddress = fn(&VirtualAddress, &ApiEndpoint) -> Result<(), String>;

impl Node {
    /// A machine as a user's own command sets it up; fields say what differs in tests and dry runs.
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

    /// The time by the machine's clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// The name of the Node.
    pub fn name(&self) -> &str {
        &self.config.init.node_registration.name
    }

    /// Which certificates this machine needs as a control plane.
    pub fn pki(&self) -> Result<certs::Plan, Error> {
        let config = &self.config;
        Ok(certs::Plan::new(&config.cluster, &config.init.local_api_endpoint, self.name())?)
    }

    /// Which kubeconfig files this machine needs as a control plane; `super-admin.conf` is the first one's alone.
    pub fn kubeconfigs(&self, super_admin: bool) -> Vec<kubeconfigs::Plan> {
        kubeconfigs::plan(
            &self.config.cluster,
            &self.config.init.local_api_endpoint,
            self.name(),
            super_admin,
        )
    }

    /// The authorities whose keys are kept elsewhere, once everything that they sign is here and good.
    pub(crate) fn external_authorities(&self) -> Result<Vec<certs::Ca>, Error> {
        check_external(
            &self.layout.kubernetes,
            &self.layout.certificates,
            &self.pki()?,
            &self.kubeconfigs(true),
            self.now(),
        )
    }

    /// Makes or checks one kubeconfig file by the name of its phase.
    pub(crate) fn ensure_kubeconfig(&self, phase: &str) -> Result<Touched, Error> {
        let plans = self.kubeconfigs(true);
        let plan = plans
            .iter()
            .find(|p| p.phase == phase)
            .ok_or_else(|| Error::Usage(format!("there is no kubeconfig {phase:?}")))?;
        files::ensure_one(
            &self.layout.kubernetes,
            &self.layout.certificates,
            plan,
            &self.pki()?,
            self.now(),
        )
    }

    /// Whether this machine can sign for the cluster.
    pub fn has_ca_key(&self) -> bool {
        self.layout.pki(certs::Ca::Kubernetes.base(), "key").exists()
    }

    /// Writes one component's static Pod. `members` are etcd's, where this machine joins them.
    pub(crate) fn write_manifest(
        &self,
        component: Component,
        members: &[EtcdMember],
    ) -> Result<Touched, Error> {
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
        write(component, &machine, &self.layout.manifests(), &self.patches)
    }

    /// Writes the static Pod of this node's balancer, where the cluster has them, and the API server that it begins with.
    pub(crate) fn write_balancer(&self, first: &str) -> Result<Vec<Touched>, Error> {
        let Some(balancer) = &self.config.cluster.node_balancer else { return Ok(Vec::new()) };
        let mut touched = Vec::new();
        let servers = self.host.path(BALANCER_SERVERS);
        // One that ran here knows more by now.
        if !servers.exists() && !self.dry_run {
            let directory = servers.parent().unwrap_or(&servers);
            std::fs::create_dir_all(directory).map_err(io("create the directory", directory))?;
            pki::write_file(&servers, format!("{first}\n").as_bytes(), pki::PUBLIC_MODE)?;
            touched.push(Touched::written(servers));
        }
        let pod = manifests::balancer(&self.config.cluster, balancer, &self.paths);
        let file = format!("{BALANCER}.yaml");
        touched.push(write_pod(&pod, &self.layout.manifests(), &file)?);
        Ok(touched)
    }

    /// Writes the static Pod by which this control plane contends for the virtual address, where the cluster has one.
    pub(crate) fn write_virtual_address(&self) -> Result<Option<Touched>, Error> {
        let Some(held) = &self.config.cluster.virtual_address else { return Ok(None) };
        let local = &self.config.init.local_api_endpoint;
        let pod =
            manifests::virtual_address(&self.config.cluster, held, local, self.name(), &self.paths);
        write_pod(&pod, &self.layout.manifests(), &format!("{VIRTUAL_ADDRESS}.yaml")).map(Some)
    }

    /// The patience that the configuration asks for.
    pub fn timeouts(&self) -> Timeouts {
        let mut timeouts = self.config.init.timeouts.clone().unwrap_or_default();
        bootstrap_core::config::default_timeouts(&mut timeouts);
        timeouts
    }

    /// A client with the administrator's rights.
    pub async fn client(&mut self) -> Result<Client, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = cluster::admin(&self.layout, self.timeouts().kubernetes_api_call).await?;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Brings objects into the cluster; a dry run only tells of them.
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

    /// The client that was chosen for it, if one was.
    pub(crate) fn given_client(&self) -> Option<Client> {
        self.client.clone()
    }

    /// Uses a client that is at hand, as `up` does in its own process.
    pub fn use_client(&mut self, client: Client) {
        self.client = Some(client);
    }
}
