#include "models.hpp"

#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;

namespace bench {

namespace {

template <auto define>
std::unique_ptr<DynamicPlan> plan(const BucketOptions& buckets) {
  return std::make_unique<DynamicPlan>([](graph::Builder& g) { define(g); }, buckets);
}

void bert(graph::Builder& g) { models::define_bert(g, {}); }
// As published for SST-5, with the vocabulary size of its training sentences.
void transformer(graph::Builder& g) {
  models::define_transformer(g, {.layers = 6,
                                 .width = 256,
                                 .heads = 4,
                                 .ffn = 1024,
                                 .length = 256,
                                 .vocabulary = 16'583,
                                 .classes = 5});
}
constexpr Image large{3, 224, 224}, small{1, 28, 28};

void convnet(graph::Builder& g) { models::ConvNet<small, 10>::define(g); }
template <class M>
void model(graph::Builder& g) {
  M::define(g);
}

}  // namespace

const std::vector<Model>& models() {
  using namespace convoy::models;
  static const std::vector<Model> all{
      {"resnet18", "images", 1, &plan<&model<ResNet18<large, 1000>>>},
      {"resnet34", "images", 1, &plan<&model<ResNet34<large, 1000>>>},
      {"resnet50", "images", 1, &plan<&model<ResNet50<large, 1000>>>},
      {"resnet101", "images", 1, &plan<&model<ResNet101<large, 1000>>>},
      {"resnet152", "images", 1, &plan<&model<ResNet152<large, 1000>>>},
      {"resnet18-mnist", "images", 1, &plan<&model<ResNet18<small, 10>>>},
      {"resnet34-mnist", "images", 1, &plan<&model<ResNet34<small, 10>>>},
      {"resnet50-mnist", "images", 1, &plan<&model<ResNet50<small, 10>>>},
      {"resnet101-mnist", "images", 1, &plan<&model<ResNet101<small, 10>>>},
      {"bert", "sentences", 1, &plan<&bert>},
      {"transformer", "sentences", 1, &plan<&transformer>},
      {"convnet", "images", 1, &plan<&convnet>},
  };
  return all;
}

}  // namespace bench
