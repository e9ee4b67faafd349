//! The keys and certificates of Pods in projected volumes. The kubelet makes a key, which never leaves the node, and a
//! PodCertificateRequest. A signer issues the certificate. [`crate::Certificates`] keeps both until the Pod's volumes
//! are unmounted. This module requests another certificate before the old one expires.

mod request;
#[cfg(test)]
mod tests;

use std::time::Duration;

use api_meta::Timestamp;
use k8s_openapi::api::core::v1::PodCertificateProjection;
use pod_core::files::{File, Files, check_path};

use self::request::{Outcome, now};
use crate::{
    certificates::{Issued, Reported, Source},
    error::{CertificateError, Error},
    ownership,
    plugin::Request,
};

/// The time that a Pod's start waits for the signer before it reports an error and tries again.
const WAIT: Duration = Duration::from_secs(10);
/// The first delay before a request is read again while a Pod's start waits.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest delay. A read is a list that the API server filters, and many Pods may wait for one slow signer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The age after which a request that does not exist was deleted.
const ABANDONED: Duration = Duration::from_secs(10 * 60);
/// The delay of a refresh after which an Event reports it.
const OVERDUE: Duration = Duration::from_secs(10 * 60);
/// The limit of the random delay of a refresh, so that not all certificates of a signer are refreshed at once.
const JITTER: Duration = Duration::from_secs(5 * 60);

/// Returns the files of a source: the key, the certificate chain, and both in one file.
pub(crate) async fn files(
    request: &Request<'_>,
    index: usize,
    projection: &PodCertificateProjection,
    mode: i32,
) -> Result<Files, Error> {
    let certificates = &request.volumes.certificates;
    if !certificates.is_on() {
        return Err(CertificateError::Off.into());
    }
    let uid = request.pod.metadata.uid.as_deref().unwrap_or_default();
    let position = (request.volume.name.clone(), index);
    let source = certificates.source(uid, &position);
    let mut source = source.lock().await;
    let issued = source.current(request, projection).await?;
    certificates.set_due(uid, &position, source.pending.is_none().then_some(issued.refresh));
    let bundle = format!("{}{}", issued.key, issued.chain);
    let (owner, mode) = ownership::of_credential(request.pod, mode);
    let mut files = Files::default();
    for (path, content) in [
        (&projection.credential_bundle_path, bundle),
        (&projection.key_path, issued.key),
        (&projection.certificate_chain_path, issued.chain),
    ] {
        let Some(path) = path.as_ref().filter(|path| !path.is_empty()) else { continue };
        check_path(path)?;
        files.insert(path.clone(), File { content: content.into_bytes().into(), mode, owner })?;
    }
    Ok(files)
}

impl Source {
    /// Returns the key and its certificate. The first one is waited for; later ones replace it when they are issued.
    async fn current(
        &mut self,
        request: &Request<'_>,
        projection: &PodCertificateProjection,
    ) -> Result<Issued, Error> {
        if self.issued.is_some()
            && let Err(error) = self.refresh(request, projection).await
        {
            let pod = pod_core::namespaced_name(request.pod);
            tracing::warn!(%pod, %error, "the certificate of a Pod is not refreshed");
        }
        let (mut waited, mut delay) = (Duration::ZERO, rt::Backoff::new(PAUSE, LONGEST_PAUSE));
        while self.refusal.is_none() && self.issued.is_none() {
            if self.pending.is_none() {
                self.pending = Some(request::create(request, projection).await?);
            }
            self.settle(request).await?;
            if waited >= WAIT {
                return Err(CertificateError::NotIssued.into());
            }
            if self.pending.is_some() {
                let pause = delay.next(rt::random());
                tokio::time::sleep(pause).await;
                waited += pause;
            }
        }
        match (&self.refusal, &self.issued) {
            (None, Some(issued)) => Ok(issued.clone()),
            (refusal, _) => Err(refusal.clone().unwrap_or(CertificateError::NotIssued).into()),
        }
    }

    /// Requests another certificate when it is time, and takes it when it is issued.
    async fn refresh(
        &mut self,
        request: &Request<'_>,
        projection: &PodCertificateProjection,
    ) -> Result<(), Error> {
        self.settle(request).await?;
        let now = now(request);
        let Some(issued) = self.issued.as_mut().filter(|issued| issued.refresh <= now) else {
            return Ok(());
        };
        issued.report_age(request, now);
        if self.pending.is_none() && self.refusal.is_none() {
            self.pending = Some(request::create(request, projection).await?);
        }
        Ok(())
    }

    /// Reads the pending request and takes its outcome.
    async fn settle(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let now = now(request);
        match request::read(request, pending).await? {
            Outcome::Waiting => return Ok(()),
            Outcome::Missing if now < pending.created.plus(ABANDONED) => return Ok(()),
            Outcome::Missing => {}
            Outcome::Issued { chain, refresh, end } => {
                let jitter = rt::random_in(0..JITTER.as_secs());
                self.issued = Some(Issued {
                    key: pending.key.clone(),
                    chain,
                    refresh: refresh.plus(Duration::from_secs(jitter)),
                    end,
                    reported: Reported::default(),
                });
            }
            Outcome::Refused { event, error } => {
                let (reason, message) = event;
                request.volumes.events.warn(request.pod, reason, message);
                self.refusal = Some(error);
            }
        }
        self.pending = None;
        Ok(())
    }
}

impl Issued {
    /// Records once that the refresh is overdue, and once that the certificate has expired.
    fn report_age(&mut self, request: &Request<'_>, now: Timestamp) {
        let warn = |reason: &'static str, message: &str| {
            request.volumes.events.warn(request.pod, reason, message.to_owned());
        };
        if now > self.refresh.plus(OVERDUE) && !self.reported.overdue {
            warn("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
            self.reported.overdue = true;
        }
        if now > self.end && !self.reported.expired {
            warn("CertificateExpired", "PodCertificate expired");
            self.reported.expired = true;
        }
    }
}
