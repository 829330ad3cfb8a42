//! Amounts as they are serialized.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Amount, QuantityError};

impl TryFrom<Quantity> for Amount {
    type Error = QuantityError;

    fn try_from(quantity: Quantity) -> Result<Self, QuantityError> {
        quantity.0.parse()
    }
}

impl From<Amount> for Quantity {
    fn from(amount: Amount) -> Self {
        Self(amount.to_string())
    }
}
