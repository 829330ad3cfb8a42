//! The API server as the judge of users of the kubelet's API.

use std::time::Duration;

use podwright_api::reviews::{NodeAccess, ReviewedUser, TokenReviewError};
use podwright_api::{ApiClient, ApiError};
use podwright_cri::BoxFuture;
use podwright_server::kubelet::{AccessReview, ReviewError, Reviewer, UserInfo};

/// Reviews over a connection of their own, so that they never wait for other requests.
pub(crate) struct ApiReviewer(ApiClient);

impl ApiReviewer {
    pub(crate) fn new(cluster: &ApiClient) -> Self {
        Self(cluster.new_connection())
    }
}

impl Reviewer for ApiReviewer {
    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<UserInfo>, ReviewError>> {
        Box::pin(async move {
            let reviewed = self.0.review_token(token, LIMIT).await.map_err(|error| match &error {
                TokenReviewError::Call(error) => review_error(error),
                TokenReviewError::Rejected(_) => {
                    ReviewError { message: error.to_string(), retry: false, rejected: true }
                }
            })?;
            Ok(reviewed.map(|ReviewedUser { username, uid, groups, extra }| UserInfo {
                name: username,
                uid,
                groups,
                extra,
            }))
        })
    }

    fn review_access<'a>(&'a self, review: &'a AccessReview) -> BoxFuture<'a, Result<bool, ReviewError>> {
        Box::pin(async move {
            let UserInfo { name, uid, groups, extra } = UserInfo::clone(&review.user);
            let user = ReviewedUser { username: name, uid, groups, extra };
            let AccessReview { node, verb, subresource, .. } = review;
            let access = NodeAccess { user: &user, node, verb, subresource };
            self.0.review_access(access, LIMIT).await.map_err(|error| review_error(&error))
        })
    }
}

/// A refusal by the server is final; everything else may pass.
fn review_error(error: &ApiError) -> ReviewError {
    let retry = error.code().is_none_or(|code| code == 429 || code >= 500);
    ReviewError { message: error.to_string(), retry, rejected: false }
}

/// For one attempt.
const LIMIT: Duration = Duration::from_secs(10);
