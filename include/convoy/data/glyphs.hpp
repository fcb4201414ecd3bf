// Glyphs: how people write the ten digits, as pen strokes in a unit square (x to the right, y down). Several
// ways for each digit: with and without flag, bar, loop or closed top. digits.hpp turns them into images.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <span>

namespace convoy::data {

struct Point {
  float x = 0, y = 0;
};

/// One movement of the pen through its points: straight between them, or a smooth curve (Catmull-Rom).
struct Stroke {
  static constexpr int capacity = 12;
  bool curved = false;
  int count = 0;
  Point point[capacity] = {};

  constexpr Stroke() = default;
  constexpr Stroke(bool is_curved, std::initializer_list<Point> points) : curved(is_curved) {
    for (const Point& p : points) point[count++] = p;
  }
};

/// One way to write a digit: at most three strokes.
struct Glyph {
  static constexpr int capacity = 3;
  int digit = 0, count = 0;
  Stroke stroke[capacity] = {};

  constexpr Glyph(int of, std::initializer_list<Stroke> strokes) : digit(of) {
    for (const Stroke& s : strokes) stroke[count++] = s;
  }
};

namespace detail {
constexpr Stroke line(std::initializer_list<Point> points) { return {false, points}; }
constexpr Stroke curve(std::initializer_list<Point> points) { return {true, points}; }
}  // namespace detail

/// The ways to write `digit`, 0 to 9.
inline std::span<const Glyph> glyphs_of(int digit) {
  using detail::curve, detail::line;
  static constexpr Glyph all[] = {
      // 0: round, narrow, with overlapping ends
      {0,
       {curve({{.5f, .05f},
               {.27f, .17f},
               {.18f, .5f},
               {.27f, .83f},
               {.5f, .95f},
               {.73f, .83f},
               {.82f, .5f},
               {.73f, .17f},
               {.5f, .05f}})}},
      {0,
       {curve({{.58f, .05f},
               {.36f, .2f},
               {.3f, .5f},
               {.36f, .82f},
               {.5f, .95f},
               {.66f, .8f},
               {.72f, .48f},
               {.68f, .18f},
               {.52f, .05f}})}},
      {0,
       {curve({{.62f, .1f},
               {.4f, .08f},
               {.22f, .3f},
               {.2f, .62f},
               {.36f, .92f},
               {.62f, .9f},
               {.8f, .62f},
               {.78f, .3f},
               {.6f, .08f},
               {.42f, .12f}})}},
      // 1: a bar, with a flag, with flag and foot, slanted
      {1, {line({{.5f, .05f}, {.5f, .95f}})}},
      {1, {line({{.34f, .25f}, {.52f, .06f}, {.52f, .95f}})}},
      {1, {line({{.34f, .25f}, {.52f, .06f}, {.52f, .95f}}), line({{.32f, .95f}, {.72f, .95f}})}},
      {1, {line({{.62f, .05f}, {.4f, .95f}})}},
      // 2: straight foot, looped foot, wavy foot
      {2,
       {curve(
            {{.22f, .28f}, {.32f, .1f}, {.54f, .05f}, {.74f, .18f}, {.72f, .4f}, {.5f, .66f}, {.22f, .93f}}),
        line({{.22f, .93f}, {.8f, .93f}})}},
      {2,
       {curve({{.24f, .24f},
               {.4f, .07f},
               {.64f, .09f},
               {.74f, .28f},
               {.62f, .55f},
               {.4f, .82f},
               {.24f, .92f},
               {.18f, .8f},
               {.3f, .74f},
               {.5f, .86f},
               {.68f, .95f},
               {.84f, .86f}})}},
      {2,
       {curve({{.2f, .2f},
               {.42f, .05f},
               {.7f, .12f},
               {.74f, .35f},
               {.55f, .6f},
               {.3f, .82f},
               {.2f, .93f},
               {.36f, .88f},
               {.6f, .93f},
               {.82f, .9f}})}},
      // 3: two bows, flat top, one stroke with a small loop
      {3,
       {curve({{.24f, .16f}, {.46f, .05f}, {.7f, .13f}, {.7f, .34f}, {.44f, .47f}}),
        curve({{.44f, .47f}, {.72f, .56f}, {.76f, .78f}, {.5f, .95f}, {.22f, .86f}})}},
      {3,
       {line({{.24f, .07f}, {.74f, .07f}, {.46f, .42f}}),
        curve({{.46f, .42f}, {.72f, .5f}, {.78f, .72f}, {.6f, .93f}, {.24f, .9f}})}},
      {3,
       {curve({{.26f, .14f},
               {.5f, .05f},
               {.7f, .2f},
               {.6f, .4f},
               {.4f, .48f},
               {.5f, .45f},
               {.7f, .58f},
               {.72f, .82f},
               {.48f, .95f},
               {.22f, .84f}})}},
      // 4: open, closed, rounded
      {4, {line({{.3f, .06f}, {.2f, .56f}, {.8f, .56f}}), line({{.64f, .3f}, {.62f, .96f}})}},
      {4, {line({{.66f, .96f}, {.66f, .05f}, {.18f, .64f}, {.84f, .64f}})}},
      {4,
       {curve({{.28f, .08f}, {.22f, .32f}, {.28f, .52f}, {.5f, .55f}, {.7f, .46f}}),
        line({{.74f, .1f}, {.64f, .95f}})}},
      // 5: in one go, like an S, with a bar of its own
      {5,
       {line({{.74f, .07f}, {.32f, .07f}, {.28f, .42f}}),
        curve({{.28f, .42f}, {.5f, .36f}, {.74f, .48f}, {.76f, .74f}, {.54f, .94f}, {.22f, .88f}})}},
      {5,
       {curve({{.76f, .08f},
               {.46f, .08f},
               {.3f, .2f},
               {.34f, .4f},
               {.58f, .46f},
               {.74f, .64f},
               {.64f, .86f},
               {.42f, .95f},
               {.2f, .86f}})}},
      {5,
       {line({{.34f, .12f}, {.3f, .44f}}),
        curve({{.3f, .44f}, {.54f, .4f}, {.74f, .58f}, {.68f, .84f}, {.44f, .95f}, {.22f, .88f}}),
        line({{.34f, .1f}, {.8f, .06f}})}},
      // 6: round back, straight back, hooked
      {6,
       {curve({{.66f, .06f},
               {.4f, .22f},
               {.25f, .52f},
               {.26f, .8f},
               {.48f, .95f},
               {.72f, .84f},
               {.74f, .64f},
               {.54f, .52f},
               {.34f, .6f},
               {.25f, .74f}})}},
      {6,
       {curve({{.5f, .04f},
               {.34f, .36f},
               {.26f, .68f},
               {.36f, .91f},
               {.58f, .93f},
               {.72f, .76f},
               {.62f, .58f},
               {.42f, .6f},
               {.28f, .74f}})}},
      {6,
       {curve({{.74f, .14f},
               {.58f, .05f},
               {.36f, .2f},
               {.22f, .5f},
               {.26f, .82f},
               {.5f, .95f},
               {.74f, .8f},
               {.68f, .58f},
               {.46f, .52f},
               {.28f, .66f}})}},
      // 7: plain, with a bar, with a curved leg, with serif, curved leg and bar
      {7, {line({{.2f, .08f}, {.78f, .08f}, {.42f, .95f}})}},
      {7, {line({{.2f, .08f}, {.78f, .08f}, {.42f, .95f}}), line({{.32f, .5f}, {.72f, .48f}})}},
      {7, {line({{.2f, .1f}, {.76f, .08f}}), curve({{.76f, .08f}, {.6f, .36f}, {.48f, .64f}, {.44f, .95f}})}},
      {7,
       {line({{.2f, .2f}, {.22f, .08f}, {.76f, .08f}}),
        curve({{.76f, .08f}, {.6f, .36f}, {.48f, .64f}, {.44f, .95f}}), line({{.36f, .52f}, {.7f, .52f}})}},
      // 8: one crossing stroke, two rings, open at the top
      {8,
       {curve({{.7f, .18f},
               {.5f, .05f},
               {.3f, .18f},
               {.36f, .38f},
               {.6f, .54f},
               {.74f, .74f},
               {.6f, .93f},
               {.38f, .92f},
               {.26f, .74f},
               {.4f, .54f},
               {.64f, .38f},
               {.7f, .18f}})}},
      {8,
       {curve(
            {{.5f, .05f}, {.32f, .14f}, {.34f, .36f}, {.5f, .46f}, {.68f, .34f}, {.68f, .14f}, {.5f, .05f}}),
        curve(
            {{.5f, .46f}, {.28f, .6f}, {.28f, .84f}, {.5f, .95f}, {.74f, .84f}, {.72f, .6f}, {.5f, .46f}})}},
      {8,
       {curve({{.72f, .12f},
               {.46f, .06f},
               {.3f, .24f},
               {.46f, .46f},
               {.7f, .64f},
               {.66f, .88f},
               {.44f, .95f},
               {.28f, .8f},
               {.36f, .58f},
               {.6f, .4f},
               {.76f, .14f}})}},
      // 9: straight leg, hooked leg, slanted
      {9,
       {curve(
            {{.7f, .24f}, {.54f, .06f}, {.32f, .14f}, {.26f, .36f}, {.42f, .5f}, {.62f, .42f}, {.7f, .24f}}),
        line({{.7f, .2f}, {.66f, .95f}})}},
      {9,
       {curve({{.7f, .26f},
               {.5f, .05f},
               {.28f, .2f},
               {.32f, .44f},
               {.54f, .48f},
               {.7f, .28f},
               {.74f, .5f},
               {.66f, .8f},
               {.44f, .95f},
               {.24f, .86f}})}},
      {9,
       {curve({{.72f, .16f},
               {.5f, .06f},
               {.3f, .24f},
               {.34f, .44f},
               {.54f, .44f},
               {.72f, .18f},
               {.64f, .55f},
               {.5f, .95f}})}},
  };
  std::size_t begin = 0, end = 0;
  for (std::size_t i = 0; i < std::size(all); ++i) {
    if (all[i].digit < digit) begin = i + 1;
    if (all[i].digit <= digit) end = i + 1;
  }
  return std::span(all).subspan(begin, end - begin);
}

}  // namespace convoy::data
