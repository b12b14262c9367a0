"""The estimators people know from scikit-learn: `PCA` and `TruncatedSVD`."""

from grassia.estimators.pca import PCA
from grassia.estimators.truncated_svd import TruncatedSVD

__all__ = ["PCA", "TruncatedSVD"]
