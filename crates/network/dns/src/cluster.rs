//! The objects of the cluster for the plugin `kubernetes`, kept up to date by informers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::Kubeconfig;
use client::{Client, ClientTls, HttpTransport, Informer, ListOptions, Resource, TlsFiles};
use net_core::{
    api::{EndpointSlice, Service},
    policy::api::Namespace,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    corefile::Block,
    index::{Index, Pod},
    options::ApiServer,
};

/// The error of creating a client of the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    ServiceAccount(#[from] client::ServiceAccountError),
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    #[error(transparent)]
    Transport(#[from] client::Error),
    #[error("reading the kubeconfig: {0}")]
    Config(#[from] api_config::Error),
}

/// The error of a Corefile that needs other objects than the server can have.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "the Corefile names several API servers, but this server uses one; name the same in all server blocks"
    )]
    ApiServers,
    #[error("the Corefile names another API server than before; start the server again")]
    OtherApiServer,
    #[error("reaching the API server: {0}")]
    Api(#[from] ConnectError),
}

/// The cluster's objects. They are requested when a Corefile first needs them.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) index: Arc<RwLock<Index>>,
    kubeconfig: Option<PathBuf>,
    /// The client to use instead of one that the Corefile names.
    client: Option<Client>,
    tasks: rt::Tasks,
    informers: Arc<Mutex<Option<Informers>>>,
}

struct Informers {
    api: ApiServer,
    client: Client,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    namespaces: Informer<Namespace>,
    /// `None` until a Corefile needs Pods.
    pods: Option<Informer<Pod>>,
}

impl Cluster {
    pub(crate) fn new(
        kubeconfig: Option<PathBuf>,
        client: Option<Client>,
        tasks: rt::Tasks,
    ) -> Self {
        let (index, informers) = Default::default();
        Self { index, kubeconfig, client, tasks, informers }
    }

    fn informers(&self) -> MutexGuard<'_, Option<Informers>> {
        self.informers.lock()
    }

    /// Reports whether all objects that were requested have been listed.
    pub(crate) fn is_synced(&self) -> bool {
        self.informers().as_ref().is_none_or(|informers| {
            informers.services.is_synced()
                && informers.slices.is_synced()
                && informers.namespaces.is_synced()
                && informers.pods.as_ref().is_none_or(Informer::is_synced)
        })
    }

    /// Starts the informers that a Corefile needs. Those that a former one needed stay.
    pub(crate) fn follow(&self, blocks: &[Block]) -> Result<(), ClusterError> {
        let mut servers = blocks.iter().filter_map(|block| Some(&block.kubernetes.as_ref()?.api));
        let Some(api) = servers.next() else { return Ok(()) };
        if servers.any(|other| other != api) {
            return Err(ClusterError::ApiServers);
        }
        let mut started = self.informers();
        if started.as_ref().is_some_and(|started| started.api != *api) {
            return Err(ClusterError::OtherApiServer);
        }
        let informers = match &mut *started {
            Some(informers) => informers,
            none => none.insert(self.start(api)?),
        };
        if informers.pods.is_none() && blocks.iter().any(|block| block.needs_pods) {
            informers.pods = Some(self.pods(&informers.client));
        }
        Ok(())
    }

    /// Returns a function that changes the index.
    fn change(&self) -> impl Fn(&dyn Fn(&mut Index)) + use<> {
        let index = self.index.clone();
        move |change: &dyn Fn(&mut Index)| change(&mut index.write())
    }

    fn start(&self, api: &ApiServer) -> Result<Informers, ConnectError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => connect(api, self.kubeconfig.as_deref())?,
        };
        let (all, tasks) = (ListOptions::default, &self.tasks);
        let change = self.change();
        let services =
            Informer::<Service>::start(&client, Resource::SERVICES, all(), tasks, move |event| {
                change(&|index| index.set_service(event.key, event.new.cloned()));
            });
        let change = self.change();
        let slices = Informer::<EndpointSlice>::start(
            &client,
            Resource::ENDPOINT_SLICES,
            all(),
            tasks,
            move |event| {
                change(&|index| index.set_slice(event.key, event.old, event.new.cloned()));
            },
        );
        let change = self.change();
        let namespaces = Informer::<Namespace>::start(
            &client,
            Resource::NAMESPACES,
            all(),
            tasks,
            move |event| {
                let labels = event.new.map(|namespace| namespace.metadata.labels.clone());
                change(&|index| index.set_namespace(event.key, labels.clone()));
            },
        );
        Ok(Informers { api: api.clone(), client, services, slices, namespaces, pods: None })
    }

    fn pods(&self, client: &Client) -> Informer<Pod> {
        let (all, change) = (ListOptions::default(), self.change());
        Informer::<Pod>::start(client, Resource::PODS, all, &self.tasks, move |event| {
            change(&|index| {
                index.set_pod(event.old.map(AsRef::as_ref), event.new.map(AsRef::as_ref))
            });
        })
    }
}

const USER_AGENT: &str = "coredns";

/// Creates a client of the Corefile's API server, of a kubeconfig's, or as the Pod's service account.
fn connect(server: &ApiServer, kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    match (server, kubeconfig) {
        (ApiServer::Kubeconfig { path, context: Some(context) }, _) => {
            let config = Kubeconfig { current_context: context.clone(), ..Kubeconfig::load(path)? };
            Ok(Client::from_kubeconfig(&config, USER_AGENT)?)
        }
        (ApiServer::Kubeconfig { path, context: None }, _) => {
            Ok(Client::from_kubeconfig_file(path, USER_AGENT)?)
        }
        (ApiServer::Endpoint { url, tls }, _) => {
            let [certificate, key, ca] =
                tls.clone().map_or([None, None, None], |files| files.map(Some));
            let files = TlsFiles { ca, certificate, key, ..TlsFiles::default() };
            let has_tls = url.starts_with("https://");
            let tls = if has_tls { ClientTls::from_files(files)? } else { ClientTls::anyone() };
            Ok(Client::new(Arc::new(HttpTransport::new(url, tls, None)?), USER_AGENT))
        }
        (ApiServer::Default, Some(path)) => Ok(Client::from_kubeconfig_file(path, USER_AGENT)?),
        (ApiServer::Default, None) => Ok(Client::from_service_account(USER_AGENT)?),
    }
}
