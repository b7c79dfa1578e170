//! The hub as this program sees it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::AsyncRead;

use super::cache::Cache;
use super::names::{is_commit, is_path, is_repository, is_revision};
use super::ranges::Target;
use super::requests::Requests;
use super::settings::HubSettings;
use crate::base::Secret;
use crate::ports::{Hub, HubError, HubRepository};

/// A hub that is asked over HTTP.
pub struct HfHub {
    requests: Arc<Requests>,
    cache: Cache,
    token: Option<Secret<String>>,
}

impl HfHub {
    /// With settings of its own. Nothing is asked yet.
    ///
    /// # Errors
    /// [`HubError::Setting`] for settings that cannot be, [`HubError::Unreachable`] where TLS has no authorities.
    pub fn new(settings: HubSettings) -> Result<Self, HubError> {
        let requests = Requests::new(&settings)?;
        let cache = Cache::new(settings.cache, &requests.interpreter.endpoint);
        Ok(Self { requests: Arc::new(requests), cache, token: settings.token })
    }

    /// As the environment says, see [`HubSettings::from_environment`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn from_environment() -> Result<Self, HubError> {
        Self::new(HubSettings::from_environment())
    }

    fn target(&self, repository: &str, commit: &str, file: &str) -> Result<Target, HubError> {
        let repository = repository.to_owned();
        if !is_repository(&repository) {
            return Err(HubError::NoRepository { repository });
        }
        if !is_revision(commit) {
            return Err(HubError::NoRevision { repository, revision: commit.to_owned() });
        }
        if !is_path(file) {
            return Err(HubError::NoFile { repository, file: file.to_owned() });
        }
        Ok(Target { repository, commit: commit.to_owned(), file: file.to_owned() })
    }
}

#[async_trait]
impl Hub for HfHub {
    fn endpoint(&self) -> &str {
        &self.requests.interpreter.endpoint
    }

    fn token(&self) -> Option<Secret<String>> {
        self.token.clone()
    }

    async fn repository(&self, repository: &str, revision: Option<&str>) -> Result<HubRepository, HubError> {
        if !is_repository(repository) {
            return Err(HubError::NoRepository { repository: repository.to_owned() });
        }
        if let Some(revision) = revision.filter(|revision| !is_revision(revision)) {
            let (repository, revision) = (repository.to_owned(), revision.to_owned());
            return Err(HubError::NoRevision { repository, revision });
        }
        let pinned = revision.filter(|revision| is_commit(revision));
        if let Some(commit) = pinned
            && let Some(known) = self.cache.repository(repository, commit).await
        {
            return Ok(known);
        }
        let found = self.requests.revision(repository, revision).await?;
        if let Some(commit) = pinned.filter(|commit| *commit != found.commit) {
            let reason = format!("asked for commit {commit} of {repository}, it answers with {}", found.commit);
            return Err(self.requests.interpreter.nonsense(reason));
        }
        let before = self.cache.repository(&found.repository, &found.commit).await;
        let files = match before {
            Some(known) => known.files,
            None => self.requests.files(&found.repository, &found.commit).await?,
        };
        let known = HubRepository {
            repository: found.repository,
            commit: found.commit,
            gated: found.gated,
            license: found.license,
            base_models: found.base_models,
            files,
        };
        self.cache.keep_repository(&known.repository, &known).await;
        if known.repository != repository {
            self.cache.keep_repository(repository, &known).await;
        }
        Ok(known)
    }

    async fn read(
        &self,
        repository: &str,
        commit: &str,
        file: &str,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, HubError> {
        let target = self.target(repository, commit, file)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        // A branch moves; a commit does not.
        let lasting = is_commit(commit);
        if lasting && let Some(bytes) = self.cache.range(&target, offset, length).await {
            return Ok(bytes);
        }
        let bytes = self.requests.read(&target, offset, length).await?;
        if lasting {
            self.cache.keep_range(&target, offset, length, &bytes).await;
        }
        Ok(bytes)
    }

    async fn open(
        &self,
        repository: &str,
        commit: &str,
        file: &str,
        offset: u64,
    ) -> Result<Box<dyn AsyncRead + Send + Unpin>, HubError> {
        let target = self.target(repository, commit, file)?;
        Ok(Box::new(Arc::clone(&self.requests).open(target, offset).await?))
    }

    async fn quantised_by(&self, base: &str, owner: &str) -> Result<Vec<String>, HubError> {
        for name in [base, owner] {
            if !is_repository(name) {
                return Err(HubError::NoRepository { repository: name.to_owned() });
            }
        }
        self.requests.derivatives(base, owner).await
    }
}
