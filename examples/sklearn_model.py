"""Run a pipeline of scikit-learn: `python examples/sklearn_model.py` (needs scikit-learn and skl2onnx).

It trains a forest, and a scaler with a logistic regression, on scikit-learn's wine data, converts both by skl2onnx, and
compares the classes and their probabilities for samples that were not in the training.
"""

from __future__ import annotations

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mgx_numba.session as onnxruntime


def main() -> None:
    samples, classes = load_wine(return_X_y=True)
    train, test, known, expected = train_test_split(samples.astype(np.float32), classes, random_state=0)
    models = RandomForestClassifier(50, random_state=0), make_pipeline(StandardScaler(), LogisticRegression())
    for model in models:
        model.fit(train, known)
        converted = to_onnx(model, train[:1], options={"zipmap": False})
        session = onnxruntime.InferenceSession(converted.SerializeToString())
        labels, probabilities = session.run(None, {session.get_inputs()[0].name: test})
        difference = np.abs(probabilities - model.predict_proba(test)).max()
        agree = (labels == model.predict(test)).sum()
        print(f"{type(model).__name__}: {(labels == expected).mean():.2f} right, {agree} of {len(test)} classes as")
        print(f"scikit-learn's, largest difference of a probability {difference:.0e}")


if __name__ == "__main__":
    main()
