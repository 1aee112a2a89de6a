"""Writes the notebook that papermill executes."""

import nbformat

cells = [
    nbformat.v4.new_code_cell("lr = 0.1", metadata={"tags": ["parameters"]}),
    nbformat.v4.new_code_cell(
        "import numpy as np\nfrom sklearn.linear_model import SGDRegressor\n"
        "X = np.random.randn(100, 3)\ny = X.sum(1) + np.random.randn(100)"
    ),
    nbformat.v4.new_code_cell(
        "model = SGDRegressor(eta0=lr).fit(X, y)\nnp.save('weights.npy', model.coef_)\nprint('RESULT', model.coef_[0])"
    ),
    nbformat.v4.new_code_cell("object()"),
]
notebook = nbformat.v4.new_notebook(cells=cells)
notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
nbformat.write(notebook, "in.ipynb")
