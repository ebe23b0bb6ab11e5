"""Patterns of the errors that scripts for Keras 2, or for an older Keras, meet in newer releases.

Each was collected from Keras 3.3 to 3.15 and tf_keras; a test runs the failing lines again.
"""

from __future__ import annotations

from typing import Final

_MODULE = r"'(?![\w.]*mixed_precision)(?:\w+\.)*keras(?:\.\w+)*'"
"""Module names such as ``tensorflow.keras.utils``, ``keras._tf_keras.keras`` or
``keras.api.optimizers``."""
_NAMES = (
    r"(?:__internal__|experimental|estimator|dtensor|legacy|DenseFeatures|LocallyConnected[12]D|AbstractRNNCell"
    r"|BaseLogger|MeanTensor|MeanRelativeError|RadialConstraint|SidecarEvaluator\w*|RegNet\w+"
    r"|ResNetRS\d+|(?:Generator|Ordered|Sequence)Enqueuer|(?:set_)?learning_phase\w*"
    r"|in_(?:test|train)_phase|placeholder|print_tensor|function|random_binomial|reset_uids"
    r"|manual_variable_initialization|model_from_config|mean_\w+_error|kl_divergence|log_cosh)"
)
"""Names that the modules of Keras 2 have and those of Keras 3 lack."""
_LAYER = (
    r"(?:Sequential|Functional|Model|Dense|Conv[123]D|LSTM|GRU|Embedding|Dropout|Flatten|Reshape"
    r"|Activation|BatchNormalization|InputLayer)"
)
_OPTIMIZER = r"(?:SGD|RMSprop|Adagrad|Adadelta|Adam|Adamax|AdamW|Nadam|Ftrl|LossScaleOptimizer)"
_ATTRIBUTES = (
    rf"'{_OPTIMIZER}' object has no attribute 'lr'"
    rf"|'{_LAYER}' object has no attribute '(?:updates|(?:input|output)_shape|_is_graph_network)'"
    r"|object has no attribute '(?:reset_states|(?:fit|evaluate|predict)_generator|state_updates"
    r"|add_update|get_(?:input|output)(?:_shape)?_at|(?:in|out)bound_nodes)'"
    r"|'Variable' object has no attribute 'read_value'|'ResourceVariable' object is not callable"
    r"|'KerasTensor' object has no attribute 'get_shape'"
)
_ARGUMENTS = (
    r"Argument\(s\) not recognized: \{'lr'"
    r"|(?:fit|evaluate|predict)\(\) got an unexpected keyword argument '(?:workers|max_queue_size"
    r"|use_multiprocessing)'|Arguments not recognized: \{'(?:workers|max_queue|use_multi)"
    r"|compile\(\) got an unexpected keyword argument '(?:sample_weight_mode|target_tensors"
    r"|experimental_run_tf_function|distribute|cloning)'"
    r"|apply_gradients\(\) got an unexpected keyword argument 'experimental_aggregate_gradients'"
    r"|save_weights\(\) got an unexpected keyword argument 'save_format'"
    r"|ModelCheckpoint\.__init__\(\) got an unexpected keyword argument '(?:period|options|load_w)"
    r"|TensorBoard\.__init__\(\) got an unexpected keyword argument '(?:write_grads|batch_size)'"
    r"|to_categorical\(\) got an unexpected keyword argument 'dtype'"
    r"|Unrecognized keyword arguments passed to \w+: \{'(?:dynamic|fused|virtual_batch_size|renorm"
    r"|time_major|batch_input_shape|weights|implementation)"
    r"|add_weight\(\) got multiple values for argument 'shape'|Received: add_weight\('"
)

KERAS_2_SCRIPT: Final = (
    r"must end in `\.(?:weights\.h5|keras)`|Invalid filepath extension for saving"
    r"|Keras 3 only supports|(?:not supported|deprecated) in Keras 3|not available with Keras 3"
    rf"|{_ATTRIBUTES}|{_ARGUMENTS}"
    rf"|module {_MODULE} has no attribute '{_NAMES}'|cannot import name '{_NAMES}' from {_MODULE}"
    rf"|No module named '(?:tensorflow\.)?keras(?:\.\w+)*\.(?:experimental|estimator)\b"
    r"|No module named 'keras\.preprocessing\.text'|'ImageDataGenerator' from 'keras\."
    r"|Cannot convert '\d+' to a shape|Argument `input_tensor` must be a KerasTensor"
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    r"|`add_loss\(\)` can only be called from inside `build\(\)` or `call\(\)`"
    r"|Could not interpret optimizer identifier: <tensorflow\.python\.training"
    r"|Received: reduction=auto"
)
"""Errors of Keras 3 for code that Keras 2 accepts."""

_GONE = (
    r"(?:wrappers|scikit_learn|np_utils|vis_utils|generic_utils|losses_utils|multi_gpu_model|engine"
    r"|CuDNN(?:LSTM|GRU)|[gs]et_session|adam(?:_v2)?|sgd|rmsprop|maxnorm|model_from_yaml|premade"
    r"|tensorflow_backend|RandomFourierFeatures)"
)
OLD_KERAS: Final = (
    rf"module '[\w.]*keras[\w.]*' has no attribute '{_GONE}'"
    rf"|cannot import name '{_GONE}' from '(?:tensorflow\.)?keras"
    rf"|No module named '(?:tensorflow\.)?keras(?:\.\w+)*\.{_GONE}\b"
    r"|No module named '(?:tensorflow\.)?keras\.layers\.(?:convolutional|core|recurrent|merge"
    r"|normalization|pooling|embeddings|noise|advanced_activations|wrappers)'"
    r"|keras[\w.]*mixed_precision' has no attribute 'experimental'"
    r"|cannot import name 'experimental' from 'tensorflow\.keras\.mixed_precision'"
    r"|object has no attribute '(?:predict_classes|predict_proba)'"
    r"|got an unexpected keyword argument '(?:nb_epoch|nb_val_samples|samples_per_epoch)'"
    r"|Method `model\.to_yaml\(\)` has been removed"
)
"""Errors for code that no Keras of TensorFlow 2.15 or newer accepts."""
