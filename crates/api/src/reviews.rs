//! Reviews for the kubelet's API: the user of a token (TokenReview), and whether a user has access (SubjectAccessReview).

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::ApiClient;
use crate::client::request;
use crate::error::{ApiError, truncated};

/// The user of a token, as the API server returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ReviewedUser {
    /// Never empty for a valid token.
    pub username: String,
    /// May be empty.
    pub uid: String,
    /// Without the groups that every authenticated user has.
    pub groups: Vec<String>,
    /// Claims of the token.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request to the authorizer of the API server, for access to a subresource of a Node object.
#[derive(Clone, Copy, Debug)]
pub struct NodeAccess<'a> {
    /// The user who requests access.
    pub user: &'a ReviewedUser,
    /// Name of the Node object.
    pub node: &'a str,
    /// May be empty.
    pub verb: &'a str,
    /// Such as `proxy`.
    pub subresource: &'a str,
}

/// Why a token could not be reviewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenReviewError {
    /// The API server did not review it.
    #[error(transparent)]
    Call(#[from] ApiError),
    /// The token is not valid, or an authenticator failed. The text is that of the API server.
    #[error("token rejected: {0}")]
    Rejected(String),
}

impl ApiClient {
    /// The user of a token; `None`: it is not valid. An error must not be cached as a result.
    pub async fn review_token(&self, token: &str, limit: Duration) -> Result<Option<ReviewedUser>, TokenReviewError> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let response: Review<TokenStatus> =
            self.review("/apis/authentication.k8s.io/v1/tokenreviews", review.to_string(), limit).await?;
        response.status.user()
    }

    /// Whether a user may access a subresource of a Node.
    pub async fn review_access(&self, access: NodeAccess<'_>, limit: Duration) -> Result<bool, ApiError> {
        let NodeAccess { user, node, verb, subresource } = access;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                "resourceAttributes": {
                    "version": "v1", "resource": "nodes", "name": node, "verb": verb, "subresource": subresource,
                },
            },
        });
        let response: Review<AccessStatus> =
            self.review("/apis/authorization.k8s.io/v1/subjectaccessreviews", review.to_string(), limit).await?;
        let AccessStatus { allowed, denied } = response.status;
        if allowed && denied {
            return Err(ApiError::Malformed("a SubjectAccessReview that is both allowed and denied".into()));
        }
        Ok(allowed)
    }

    async fn review<T: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        body: String,
        limit: Duration,
    ) -> Result<T, ApiError> {
        let request = request(Method::POST, path, Some(("application/json", body.into_bytes())));
        let response = self.call(request, limit).await?;
        serde_json::from_slice(&response).map_err(|error| ApiError::Malformed(error.to_string()))
    }
}

#[derive(Deserialize)]
struct Review<T> {
    status: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    error: String,
    user: ReviewedUser,
}

impl TokenStatus {
    /// Kubernetes: `WebhookTokenAuthenticator.AuthenticateToken` fails with the error of a review that is not authenticated.
    fn user(self) -> Result<Option<ReviewedUser>, TokenReviewError> {
        let Self { authenticated, error, user } = self;
        if !authenticated && !error.is_empty() {
            return Err(TokenReviewError::Rejected(truncated(error.as_bytes())));
        }
        Ok(Some(user).filter(|user| authenticated && !user.username.is_empty()))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_review_with_an_error_is_no_verdict() {
        let reviewed = |status| serde_json::from_value::<TokenStatus>(status).unwrap().user();
        let jane = ReviewedUser { username: "jane".into(), ..ReviewedUser::default() };
        let user = json!({"username": "jane"});
        assert_eq!(reviewed(json!({"authenticated": true, "user": user})), Ok(Some(jane.clone())));
        assert_eq!(reviewed(json!({"authenticated": true, "user": user, "error": "slow"})), Ok(Some(jane)));
        assert_eq!(reviewed(json!({"authenticated": true})), Ok(None));
        assert_eq!(reviewed(json!({"user": user})), Ok(None));
        let failed = TokenReviewError::Rejected("webhook is down".into());
        assert_eq!(reviewed(json!({"authenticated": false, "user": user, "error": "webhook is down"})), Err(failed));
    }
}
