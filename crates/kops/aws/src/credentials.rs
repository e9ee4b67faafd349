//! The credentials of requests: an explicit key, or those that AWS' own tools would find (variables, shared files, web
//! identity, instance metadata).

use aws_config::{
    Region, default_provider::credentials::DefaultCredentialsChain, provider_config::ProviderConfig,
};
use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials as _, SharedCredentialsProvider},
};
use aws_smithy_runtime_api::client::{
    http::{
        HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
    },
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::body::SdkBody;
use client::{ClientTls, HttpTransport, Transport as _};
use tokio::sync::{Mutex, OnceCell};

use crate::{error::Error, sign::trust};

/// The largest answer of a credentials provider, in bytes.
const LARGEST: usize = 256 << 10;
/// The time before the expiry of credentials at which they are renewed.
const MARGIN: std::time::Duration = std::time::Duration::from_secs(60);

/// An explicit key.
#[derive(Clone)]
pub struct StaticKey {
    /// The access key ID.
    pub key: String,
    /// The secret access key.
    pub secret: String,
    /// The source of the key, for logs.
    pub from: &'static str,
}

/// A source of credentials, which caches them until shortly before their expiry.
#[derive(Debug)]
pub struct Source {
    region: String,
    authorities: Option<String>,
    provider: OnceCell<SharedCredentialsProvider>,
    cached: Mutex<Option<Credentials>>,
}

impl Source {
    /// Creates a source from an explicit key, or from the places that AWS' own tools search. `authorities` is a file of
    /// certificate authorities for servers; `None` for the system's.
    pub fn new(region: &str, authorities: Option<String>, key: Option<StaticKey>) -> Self {
        let key = key.map(|key| Credentials::new(key.key, key.secret, None, None, key.from));
        let (provider, cached) = (OnceCell::new(), Mutex::new(key));
        Self { region: region.to_owned(), authorities, provider, cached }
    }

    /// Returns valid credentials.
    pub async fn current(&self) -> Result<Credentials, Error> {
        let mut cached = self.cached.lock().await;
        let good =
            |found: &Credentials| found.expiry().is_none_or(|expiry| expiry > rt::now() + MARGIN);
        if let Some(good) = cached.as_ref().filter(|found| good(found)) {
            return Ok(good.clone());
        }
        let provider = self.provider.get_or_init(|| self.chain()).await;
        let found = provider.provide_credentials().await;
        let found = found.map_err(|error| Error::Credentials { cause: rt::with_causes(&error) })?;
        *cached = Some(found.clone());
        Ok(found)
    }

    async fn chain(&self) -> SharedCredentialsProvider {
        let config = ProviderConfig::default()
            .with_region(Some(Region::new(self.region.clone())))
            .with_http_client(SdkHttpClient { authorities: self.authorities.clone() });
        let chain = DefaultCredentialsChain::builder().configure(config).build().await;
        SharedCredentialsProvider::new(chain)
    }
}

/// Our HTTP client, for the AWS SDK's credentials providers.
#[derive(Clone, Debug)]
struct SdkHttpClient {
    authorities: Option<String>,
}

impl HttpClient for SdkHttpClient {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for SdkHttpClient {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let authorities = self.authorities.clone();
        HttpConnectorFuture::new(async move {
            send(request, authorities.as_deref()).await.map_err(ConnectorError::io)
        })
    }
}

async fn send(
    request: HttpRequest,
    authorities: Option<&str>,
) -> Result<HttpResponse, Box<dyn std::error::Error + Send + Sync>> {
    let mut request = request.try_into_http1x()?.map(|body| {
        // Requests for credentials are small and complete in memory.
        client::full(body.bytes().map(<[u8]>::to_vec).unwrap_or_default())
    });
    let to = request.uri().clone();
    let server = format!(
        "{}://{}",
        to.scheme_str().unwrap_or("https"),
        to.authority().map_or("", |authority| authority.as_str())
    );
    let path = to.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse()?;
    let authority = to.authority().map(ToString::to_string).unwrap_or_default();
    request.headers_mut().insert(http::header::HOST, authority.parse()?);
    let tls = if server.starts_with("http:") { ClientTls::anyone() } else { trust(authorities)? };
    let transport = HttpTransport::http1(&server, tls)?;
    let (head, body) = transport.send(request).await?.into_parts();
    let body = client::read(&server, body, LARGEST).await?;
    let response = http::Response::from_parts(head, SdkBody::from(body));
    Ok(HttpResponse::try_from(response)?)
}
