//! The providers of a node, and the credentials that they return for an image.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use client::Resource;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kubelet_config::CredentialProviderPaths;
use kubelet_objects::{Objects, ObjectsError};
use kubelet_volumes::Tokens;
use parking_lot::Mutex;
use pod_core::Timestamp;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    cache::{Cache, CachedResponse, Credentials},
    config::{self, ProviderConfig, ProvidersError, TokenAttributes},
    matching::{matches, repository},
    program::{Program, ProgramError, Request, TIMEOUT},
};
use crate::pulls::{PullAccount, hex};

/// The largest number of runs of one provider's program at the same time.
const PARALLEL: usize = 8;
/// The largest number of Pods whose tokens are cached.
const TOKENS: usize = 1024;

/// The error of one provider for one image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProviderError {
    #[error("image credential provider {provider:?}: {source}")]
    Program { provider: String, source: ProgramError },
    #[error("image credential provider {provider:?}: read the Pod's service account: {source}")]
    Account { provider: String, source: ObjectsError },
    #[error(
        "image credential provider {provider:?}: the service account {account:?} does not exist"
    )]
    NoAccount { provider: String, account: String },
    #[error(
        "image credential provider {provider:?}: the service account {account:?} lacks the annotation {key:?}"
    )]
    Annotation { provider: String, account: String, key: String },
}

/// A username and password for an image.
#[derive(Clone)]
pub(crate) struct ProviderCredential {
    pub(crate) username: String,
    pub(crate) password: String,
    /// The service account whose token the provider exchanged for them, if it received one.
    pub(crate) account: Option<PullAccount>,
}

/// The credentials of all providers for an image, and the providers that failed.
#[derive(Default)]
pub(crate) struct Provided {
    pub(crate) credentials: Vec<ProviderCredential>,
    pub(crate) errors: Vec<ProviderError>,
}

/// The Pod for which an image is pulled, and the API server that has its service account.
pub(crate) struct PodAccount<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) objects: &'a Objects,
    pub(crate) now: Timestamp,
}

/// The image credential providers of this node.
#[derive(Default)]
pub(crate) struct Providers {
    providers: Vec<Provider>,
    /// The service account tokens, by Pod.
    tokens: Mutex<HashMap<String, Arc<Tokens>>>,
}

struct Provider {
    name: String,
    api_version: String,
    patterns: Vec<String>,
    default_duration: Duration,
    token: Option<TokenAttributes>,
    program: Program,
    cache: Cache,
    runs: Semaphore,
}

/// The token of a Pod's service account, for one provider.
#[derive(Default)]
struct AccountToken {
    token: String,
    annotations: BTreeMap<String, String>,
    account: Option<PullAccount>,
    /// The part of the cache's key that stands for the account or its token.
    key: String,
}

impl Providers {
    /// Reads the configuration of the providers, if there are any.
    pub(crate) fn load(paths: Option<&CredentialProviderPaths>) -> Result<Self, ProvidersError> {
        let Some(paths) = paths else { return Ok(Self::default()) };
        let provider = |config: ProviderConfig| Provider {
            program: Program {
                path: paths.programs.join(&config.name),
                args: config.args,
                env: config.env.into_iter().map(|v| (v.name, v.value)).collect(),
                timeout: TIMEOUT,
            },
            name: config.name,
            api_version: config.api_version,
            patterns: config.match_images,
            default_duration: config.default_cache_duration.unwrap_or_default().to_std(),
            token: config.token_attributes,
            cache: Cache::default(),
            runs: Semaphore::new(PARALLEL),
        };
        let providers = config::read(paths)?.into_iter().map(provider).collect();
        Ok(Self { providers, tokens: Mutex::default() })
    }

    /// Returns the credentials for an image of all providers that match it, in the order of the configuration.
    pub(crate) async fn credentials(&self, image: &str, account: &PodAccount<'_>) -> Provided {
        let image = repository(image);
        let matching =
            |provider: &&Provider| provider.patterns.iter().any(|pattern| matches(pattern, &image));
        let calls = self.providers.iter().filter(matching).map(|provider| async {
            let tokens = provider.token.as_ref().map(|_| self.tokens_of(account.pod));
            provider.credentials(&image, account, tokens.as_deref()).await
        });
        let mut provided = Provided::default();
        for result in futures_util::future::join_all(calls).await {
            match result {
                Ok(credentials) => provided.credentials.extend(credentials),
                Err(error) => provided.errors.push(error),
            }
        }
        provided
    }

    fn tokens_of(&self, pod: &Pod) -> Arc<Tokens> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut all = self.tokens.lock();
        if all.len() >= TOKENS {
            all.clear();
        }
        all.entry(uid).or_default().clone()
    }

    #[cfg(test)]
    pub(super) fn limit_time(&mut self, timeout: Duration) {
        self.providers.iter_mut().for_each(|provider| provider.program.timeout = timeout);
    }
}

impl Provider {
    async fn credentials(
        &self,
        image: &str,
        pod: &PodAccount<'_>,
        tokens: Option<&Tokens>,
    ) -> Result<Vec<ProviderCredential>, ProviderError> {
        let mut account = AccountToken::default();
        if let (Some(attributes), Some(tokens)) = (&self.token, tokens) {
            match self.account(attributes, pod, tokens).await? {
                Some(found) => account = found,
                None if attributes.require_service_account == Some(true) => return Ok(Vec::new()),
                None => {}
            }
        }
        let all = self.response(image, &account).await?;
        // The most specific pattern comes first.
        let fitting = all.iter().rev().filter(|(pattern, _)| matches(pattern, image));
        let credential = fitting.map(|(_, auth)| ProviderCredential {
            username: auth.username.clone(),
            password: auth.password.clone(),
            account: account.account.clone(),
        });
        Ok(credential.collect())
    }

    /// Returns the cached response, or that of a run of the program.
    async fn response(
        &self,
        image: &str,
        account: &AccountToken,
    ) -> Result<Credentials, ProviderError> {
        if let Some(cached) = self.cache.get(image, &account.key, Instant::now()) {
            return Ok(cached);
        }
        let _run = self.runs.acquire().await;
        // An earlier run may have been for the same image.
        if let Some(cached) = self.cache.get(image, &account.key, Instant::now()) {
            return Ok(cached);
        }
        let request = Request {
            kind: "CredentialProviderRequest",
            api_version: &self.api_version,
            image,
            service_account_token: &account.token,
            service_account_annotations: &account.annotations,
        };
        let response = self
            .program
            .run(&request)
            .await
            .map_err(|source| ProviderError::Program { provider: self.name.clone(), source })?;
        let (now, credentials) = (Instant::now(), Arc::new(response.auth));
        let duration = response.duration.unwrap_or(self.default_duration).min(rt::FAR);
        if !duration.is_zero() {
            let cached =
                CachedResponse { credentials: credentials.clone(), expires: now + duration };
            self.cache.put(response.key_type, image, &account.key, cached, now);
        }
        Ok(credentials)
    }

    /// Returns a token of the Pod's service account, or `None` if the Pod has no account.
    async fn account(
        &self,
        attributes: &TokenAttributes,
        pod: &PodAccount<'_>,
        tokens: &Tokens,
    ) -> Result<Option<AccountToken>, ProviderError> {
        let provider = || self.name.clone();
        let failed = |source| ProviderError::Account { provider: provider(), source };
        let namespace = pod.pod.metadata.namespace.clone().unwrap_or_default();
        let name = pod.pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let Some(name) = name.filter(|name| !name.is_empty() && !pod_core::is_static(pod.pod))
        else {
            return Ok(None);
        };
        let accounts = &Resource::SERVICE_ACCOUNTS;
        let found = pod.objects.get(accounts, "service account", &namespace, &name);
        let found: Option<ServiceAccount> = found.await.map_err(failed)?;
        let Some(found) = found else {
            return Err(ProviderError::NoAccount { provider: provider(), account: name });
        };
        let all = found.metadata.annotations.unwrap_or_default();
        let annotations = attributes.annotations(&all).map_err(|missing| {
            let key = missing.key;
            ProviderError::Annotation { provider: provider(), account: name.clone(), key }
        })?;
        let projection = ServiceAccountTokenProjection {
            audience: Some(attributes.service_account_token_audience.clone()),
            ..ServiceAccountTokenProjection::default()
        };
        let token = tokens.get(pod.objects, pod.pod, &projection, pod.now).await;
        let (token, _) = token.map_err(failed)?;
        let uid = found.metadata.uid.unwrap_or_default();
        let key = match attributes.cache_type.as_str() {
            "Token" => hex(token.as_bytes()),
            _ => hex(format!("{namespace}/{name}/{uid}/{annotations:?}").as_bytes()),
        };
        let account = Some(PullAccount { uid, namespace, name });
        Ok(Some(AccountToken { token, annotations, account, key }))
    }
}
