//! `ImageService` over the socket.

use std::time::Duration;

use super::{RemoteRuntime, request, require_id, within};
use crate::{CriFuture, ImageService, v1};

impl ImageService for RemoteRuntime {
    fn list_images(&self, filter: Option<v1::ImageFilter>, timeout: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        let mut client = self.images.clone();
        let request = request(v1::ListImagesRequest { filter }, timeout);
        Box::pin(async move { Ok(within("ListImages", timeout, client.list_images(request)).await?.images) })
    }

    fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
        timeout: Duration,
    ) -> CriFuture<'_, v1::ImageStatusResponse> {
        let mut client = self.images.clone();
        let request = request(v1::ImageStatusRequest { image: Some(image), verbose }, timeout);
        Box::pin(async move { within("ImageStatus", timeout, client.image_status(request)).await })
    }

    fn pull_image(&self, message: v1::PullImageRequest, timeout: Duration) -> CriFuture<'_, String> {
        let mut client = self.images.clone();
        let request = request(message, timeout);
        Box::pin(async move {
            let response = within("PullImage", timeout, client.pull_image(request)).await?;
            require_id("PullImage", response.image_ref)
        })
    }

    fn remove_image(&self, image: v1::ImageSpec, timeout: Duration) -> CriFuture<'_, ()> {
        let mut client = self.images.clone();
        let request = request(v1::RemoveImageRequest { image: Some(image) }, timeout);
        Box::pin(async move { within("RemoveImage", timeout, client.remove_image(request)).await.map(drop) })
    }

    fn image_fs_info(&self, timeout: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        let mut client = self.images.clone();
        let request = request(v1::ImageFsInfoRequest {}, timeout);
        Box::pin(async move { within("ImageFsInfo", timeout, client.image_fs_info(request)).await })
    }
}
