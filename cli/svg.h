// One chart writer: panels one below the other over a common logarithmic x axis, a legend below them.
// Knows nothing of what it draws. The picture has its own white ground and names no font, so that it reads
// the same on light and dark pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace swiglu::cli {

/// A curve; series of the same name in different panels share a colour. y > 0 where the axis is logarithmic.
struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool dashed = false;  ///< a limit rather than a measurement
  bool hollow = false;  ///< its points
};

struct ChartPanel {
  std::string title;
  std::vector<ChartSeries> series;
  bool log_y = false;
  double low = 0;             ///< where an axis that is not logarithmic begins, unless values are below: then at 0
  std::string unit;           ///< after the numbers of the y axis
  double reference = 0;       ///< a dashed line across, unless 0
  std::string reference_name{};
};

struct Chart {
  std::string title;
  std::string subtitle;
  std::string x_title;
  std::vector<double> ticks;  ///< of x, all > 0
  std::vector<ChartPanel> panels;
};

/// A whole SVG document.
[[nodiscard]] std::string draw(const Chart& chart);

}  // namespace swiglu::cli
