//! Clients that act as service accounts, for a controller manager that runs as a process of its own.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use api_config::Kubeconfig;
use client::{Body, Client, Error, KubeconfigError, Resource, Transport};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// The identity of the shared informers.
pub const SHARED_IDENTITY: &str = "system:kube-controller-manager";

const NAMESPACE: &str = "kube-system";
const LIFETIME: Duration = Duration::from_secs(3600);

/// Creates a client for each service account. Tokens are requested under the process's own identity and renewed long
/// before they expire.
#[derive(Clone)]
pub struct ServiceAccounts {
    own: Client,
    /// A client of the same server without credentials.
    bare: Client,
}

impl ServiceAccounts {
    /// Reads the server from the kubeconfig. Its user must be allowed to create tokens of the service accounts.
    pub fn from_kubeconfig(
        kubeconfig: &Kubeconfig,
        user_agent: &str,
    ) -> Result<Self, KubeconfigError> {
        let own = Client::from_kubeconfig(kubeconfig, user_agent)?;
        let mut without = kubeconfig.clone();
        without.users.iter_mut().for_each(|user| user.user = Default::default());
        Ok(Self { own, bare: Client::from_kubeconfig(&without, user_agent)? })
    }

    /// Returns the client of one identity, as [`crate::run`] needs it.
    pub fn client(&self, name: &str) -> Client {
        if name == SHARED_IDENTITY {
            return self.own.clone();
        }
        let transport =
            AsAccount { accounts: self.clone(), name: name.to_owned(), token: Mutex::new(None) };
        Client::new(Arc::new(transport), &format!("kube-controller-manager/{name}"))
    }

    async fn token(&self, name: &str) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct TokenRequest {
            status: Token,
        }
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        let accounts = &Resource::SERVICE_ACCOUNTS;
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME.as_secs()}});
        let create_token = || {
            self.own
                .create_subresource::<_, TokenRequest>(accounts, NAMESPACE, name, "token", &request)
        };
        let issued = match create_token().await {
            Err(error) if error.is_not_found() => {
                let account = json!({"metadata": {"name": name, "namespace": NAMESPACE}});
                match self.own.create::<_, Value>(accounts, NAMESPACE, &account).await {
                    Err(error) if !error.is_already_exists() => return Err(error),
                    _ => {}
                }
                create_token().await?
            }
            other => other?,
        };
        Ok(issued.status.token)
    }
}

struct AsAccount {
    accounts: ServiceAccounts,
    name: String,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

impl AsAccount {
    async fn bearer(&self) -> Result<HeaderValue, Error> {
        let mut cache = self.token.lock().await;
        if let Some((bearer, renew)) = &*cache
            && Instant::now() < *renew
        {
            return Ok(bearer.clone());
        }
        let token = self.accounts.token(&self.name).await?;
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|source| {
            Error::Transport {
                operation: "using the token of",
                target: self.name.clone(),
                source: source.into(),
            }
        })?;
        bearer.set_sensitive(true);
        *cache = Some((bearer.clone(), Instant::now() + LIFETIME / 2));
        Ok(bearer)
    }
}

impl Transport for AsAccount {
    fn send(&self, mut request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(async move {
            request.headers_mut().insert(header::AUTHORIZATION, self.bearer().await?);
            let response = self.accounts.bare.request(request).await?;
            if response.status() == http::StatusCode::UNAUTHORIZED {
                // The account was recreated or the signing key changed: the next request gets a new token.
                *self.token.lock().await = None;
            }
            Ok(response)
        })
    }

    fn host(&self) -> &str {
        self.accounts.bare.host()
    }
}
