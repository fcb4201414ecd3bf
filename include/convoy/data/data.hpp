// The data room: data sets, and the batches that each rank takes from them. Needs zlib at link time.
#pragma once

#include <convoy/data/big_mnist.hpp>
#include <convoy/data/bpe.hpp>
#include <convoy/data/cifar10.hpp>
#include <convoy/data/cropped.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/idx.hpp>
#include <convoy/data/image_set.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/data/mapped_file.hpp>
#include <convoy/data/masked_lm.hpp>
#include <convoy/data/mnist.hpp>
#include <convoy/data/permutation.hpp>
#include <convoy/data/resized.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/data/sst.hpp>
#include <convoy/data/synthetic.hpp>
#include <convoy/data/text_file.hpp>
#include <convoy/data/token_file.hpp>
#include <convoy/data/unicode.hpp>
#include <convoy/data/vocabulary.hpp>
#include <convoy/data/wordpiece.hpp>
